"""Faults of Reformer's port under settings of its own: how it adds to its streams, how it makes its gradients."""

from __future__ import annotations

from functools import partial

from toolkit.parity.mutants.fault import Mutant, around


def _way_back(port, change):
    """Replace a plain stream's way back by ``change(stream, update)``."""
    return around(port.reversible.PlainStream, "minus", lambda plain, self, update: change(self, update))


def _half_of_a_stream(port):
    """Let one stream send back half of its gradient under plain autograd."""

    def run(*given):
        attention, hidden = plain(*given)
        return attention, hidden if not port.paddle.is_grad_enabled() else 0.5 * (hidden + hidden.detach())

    plain = port.reversible.run_traced
    return [(port.modeling, "run_traced", run)]


_plain = partial(Mutant, family="reformer", settings={"residual": "plain", "backward": "reversible"})

SETTINGS: tuple[Mutant, ...] = (
    _plain(
        "plain-stream-sign",
        "residual: plain has the wrong sign on the way back",
        "gradient:",
        lambda p: _way_back(p, lambda stream, update: stream.plus(update)),
    ),
    _plain(
        "plain-stream-stays",
        "residual: plain does not go back",
        "gradient:",
        lambda p: _way_back(p, lambda stream, update: stream),
    ),
    Mutant(
        "autograd-half-a-stream",
        "backward: autograd gives one stream half of its gradient",
        "gradient:",
        _half_of_a_stream,
        "reformer",
        settings={"backward": "autograd"},
    ),
)
