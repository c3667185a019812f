"""One run, above the gate: its parts, the gate, training, measuring, model card and report.

It may import `parity` by its public API, `training` and the packages below it. Begin with `finetune.py`, which does all
steps in order.
"""
