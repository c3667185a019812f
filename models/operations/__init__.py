"""Operations of the ports: products, parts of attention, losses, random draws, compiled loops.

It may import `files`. Begin with `ops.py`. `kernels.py` selects the operations for a CPU, `compiled.py` calls the
compiled loops, and `loop_arguments.py` declares their arguments.
"""
