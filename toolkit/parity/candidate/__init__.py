"""The Paddle worker: the same train-mode step by the port, measured against R64 tensor by tensor.

Run as ``python -m toolkit.parity.candidate JOB``. It uses the draws and discrete choices that the reference wrote down,
runs in each dtype of the job, and records how far every output and gradient lies from the truth. The verdict is not its
business (:mod:`toolkit.parity.verdict`).
"""
