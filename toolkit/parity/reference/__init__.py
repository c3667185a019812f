"""The reference's worker: the step of the `transformers` model on PyTorch. The only folder that imports torch.

Any interpreter with torch, transformers, numpy and safetensors can run it. It runs the step in float64 (R64, the
truth), records every random draw of the step, and repeats it in float32 with the same draws, several times with the
weights moved by one unit in the last place. The distance of these runs from R64 is the noise baseline by which the port
is judged (verdicts 2 and 3 of the specification, ``toolkit/parity/README.md``).

The reference is run clean. What it does in float32 although the model is float64 is done in float64 instead, and the
gradients are those of plain autograd: Reformer's reversible backward, which loses digits, is bypassed.
"""
