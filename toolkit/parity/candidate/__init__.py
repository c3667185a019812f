"""The port's worker: it runs the same train-mode step on Paddle and sends each tensor to the comparator.

The port uses the draws and discrete choices that the reference recorded, and runs in each dtype of the job. Every
output and gradient is sent to :mod:`toolkit.parity.comparator`, which measures its difference from R64, the reference
in float64. :mod:`toolkit.parity.judge.verdict` forms the verdict. The terms of this project (R64, P32, mutant, pair)
are defined in the notation of ``toolkit/parity/README.md``.
"""
