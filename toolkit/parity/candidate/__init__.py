"""The port's worker: the same train-mode step on Paddle, measured against R64 tensor by tensor.

It uses the draws and discrete choices that the reference wrote down, runs in each dtype of the job, and records how far
every output and gradient lies from the truth. The verdict is not its business (:mod:`toolkit.parity.judge.verdict`).
"""
