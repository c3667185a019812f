"""Ports in any framework, judged by the tensors that they computed from a recorded reference's weights and batch.

`given.py` compares the tensors, which `tensor_reader.py` reads. `run.py` runs a port in JAX or ONNX Runtime with the
separate programs `in_jax.py` and `in_onnx.py`. Begin with `given.py`.
"""
