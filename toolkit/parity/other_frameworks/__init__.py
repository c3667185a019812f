"""Ports in any framework, judged by the tensors that they computed from a recorded reference's weights and batch.

`output_errors.py` compares the tensors, which `tensor_reader.py` reads. `run.py` runs a port in JAX or ONNX Runtime
with the separate programs `in_jax.py` and `in_onnx.py`. Begin with `output_errors.py`.
"""
