"""The port's worker: the same train-mode step on Paddle, measured against R64 tensor by tensor.

It uses the draws and discrete choices that the reference recorded, runs in each dtype of the job, and sends every
output and gradient for :mod:`toolkit.parity.comparator`. The verdict is formed in :mod:`toolkit.parity.judge.verdict`.
"""
