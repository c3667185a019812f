"""Files that hold models: safetensors, Paddle's own, the hub's cache; and how to start another Python.

It imports no framework. Begin with `hub.py`, which finds a checkpoint, and `tensor_file.py`, which reads one.
"""
