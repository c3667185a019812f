"""One run, above the gate: what it is made of, the gate, training, measuring, model card and report.

It may import `parity` by its public API, `training` and what lies below. Begin with `finetune.py`, which does all of
it in order.
"""
