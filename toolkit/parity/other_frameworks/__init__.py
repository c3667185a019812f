"""Ports in any framework: judged by the tensors that they computed from a recorded reference's weights and batch.

`given.py` compares what a port has computed, which `tensor_reader.py` reads. `run.py` runs one in JAX or ONNX Runtime,
by `in_jax.py` and `in_onnx.py`, which are programs of their own. Begin with `given.py`.
"""
