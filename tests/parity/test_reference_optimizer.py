"""Test the reference's optimizer, the effect of Paddle's rounding of Adam's bias correction, and an old torch."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import torch
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.reference.optimizer import Optimizer, make_optimizer, scale_error

assert scale_error(0.9, 0.999, 1) == 0
assert abs(scale_error(0.9, 0.999, 2) / -3.4e-6 - 1) < 0.01
assert abs(scale_error(0.875, 0.96875, 2)) < 1e-15  # exact in float32
settings = TrainingSettings(
    max_steps=9, learning_rate=1e-3, lr_scheduler="constant", warmup_ratio=0.0, weight_decay=0.0, max_grad_norm=None
)
moved = []
for rounded in (False, True):
    model = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    optimizer = Optimizer(model, settings)
    for number, gradient in ((1, 1.0), (2, -0.5)):
        before = model.weight.detach().clone()
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.update(number, rounded)
    moved.append(float((model.weight.detach() - before)[0, 0]))
assert abs(moved[1] / moved[0] - 1 - scale_error(0.9, 0.999, 2)) < 1e-9, moved

del torch.optim.Adafactor  # came with torch 2.5
try:
    make_optimizer([], TrainingSettings(optimizer="adafactor"))
except RuntimeError as problem:
    assert "train.optimizer adafactor needs torch 2.5" in str(problem)
else:
    raise SystemExit("not refused")
"""


def test_updates_reproduce_paddles_rounding_and_an_old_torch_is_reported():
    subprocess.run([sys.executable, "-c", CHECK], check=True)  # torch is not imported in the process that has Paddle
