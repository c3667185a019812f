"""Operations that the ports are made of: products, attention's parts, losses, random draws, compiled loops.

It may import `files`. Begin with `ops.py`; `kernels.py` says which operations are compiled, and `compiled.py` calls
them.
"""
