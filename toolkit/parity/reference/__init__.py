"""The reference's process: the step of the `transformers` model on PyTorch.

This is the only folder that imports torch. Any interpreter with torch, transformers, numpy and safetensors can run it.
It runs the step in float64 (R64, the truth), records each random draw of the step, and repeats the step in float32 with
the same draws, several times with the weights moved by one unit in the last place. The distance of these runs from R64
is the noise baseline of verdicts 2 and 3 (``toolkit/parity/README.md``).

The reference runs clean: operations that its code casts to float32 remain in float64, and plain autograd computes the
gradients. Reformer's reversible backward, which loses digits, is not used.
"""
