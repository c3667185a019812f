"""Faults of the optimizers beside AdamW: a job with AdamW cannot show these. They are the same for every model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.parity.mutants.fault import Mutant, around
from toolkit.parity.mutants.training import _clipped_one_by_one, _decays, _given, _made


def _update(kind: str, change: Callable):
    """Replace an update by ``change(plain, optimizer, parameter, gradient, rate, decay, *state)``."""
    return lambda port: around(getattr(port.optimizer, kind), "update", change)


def _betas(change: Callable):
    """Let Lion take ``change(beta1, beta2)`` for its betas."""

    def changed(optimizer) -> None:
        optimizer.beta1, optimizer.beta2 = change(optimizer.beta1, optimizer.beta2)

    return lambda port: _made(port, changed)


def _without_sign(plain, self, parameter, gradient, rate, decay, moment):
    step = self.beta1 * moment + (1 - self.beta1) * gradient
    plain(self, parameter, gradient, 0.0, 0.0, moment)
    parameter.scale_(1 - rate * decay).subtract_(rate * step)


def _sign_of_gradient(plain, self, parameter, gradient, rate, decay, moment):
    direction = gradient.sign()
    plain(self, parameter, gradient, 0.0, 0.0, moment)
    parameter.scale_(1 - rate * decay).subtract_(rate * direction)


def _decay_in_gradient(plain, self, parameter, gradient, rate, decay, *state):
    plain(self, parameter, gradient + decay * parameter, rate, 0.0, *state)


def _decay_apart(plain, self, parameter, gradient, rate, decay, *state):
    parameter.scale_(1 - rate * decay)
    plain(self, parameter, gradient, rate, 0.0, *state)


def _dampened(plain, self, parameter, gradient, rate, decay, *state):
    plain(self, parameter, (1 - self.momentum) * gradient, rate, decay, *state)


def _nesterov(plain, self, parameter, gradient, rate, decay, *state):
    step = gradient + decay * parameter
    plain(self, parameter, gradient, rate * self.momentum, decay, *state)
    parameter.subtract_(rate * step)


def _second_moment(change: Callable):
    """Replace Adafactor's second moment by ``change(plain, optimizer, square, share, moments)``."""
    return lambda port: around(port.optimizer.Adafactor, "second_moment", change)


def _wrong_axis(plain, self, square, share, moments):
    """Divide the rows' means by their mean over the axis that they have lost, which leaves the columns'."""
    found = plain(self, square, share, moments)
    return found if square.ndim < 2 else moments[1].expand(square.shape)


def _whole(plain, self, square, share, moments):
    """Hold no means of rows and columns."""
    plain(self, square, share, moments)
    return square


def _of_adafactor(port, name: str, value: Callable):
    return [(port.optimizer.Adafactor, name, value)]


_fault = partial(Mutant, expected="updated:")
_moment = partial(Mutant, expected="moment:")
_second = partial(Mutant, expected="#2")

#: Faults by the optimizer.
OPTIMIZERS: dict[str, tuple[Mutant, ...]] = {
    "lion": (
        _moment("lion-betas-swapped", "Lion's betas swapped", apply=_betas(lambda beta1, beta2: (beta2, beta1))),
        _second("lion-beta1", "Lion's beta1 of 0.92 for 0.9", apply=_betas(lambda beta1, beta2: (0.92, beta2))),
        _moment("lion-beta2", "Lion's beta2 of 0.98 for 0.99", apply=_betas(lambda beta1, beta2: (beta1, 0.98))),
        _fault("lion-sign-missing", "Lion's step is not its sign", apply=_update("Lion", _without_sign)),
        _second("lion-sign-of-gradient", "the step is the gradient's sign", apply=_update("Lion", _sign_of_gradient)),
        _moment("lion-decay-coupled", "decay is a part of Lion's gradient", apply=_update("Lion", _decay_in_gradient)),
        _moment("lion-not-clipped", "no clipping", apply=lambda p: _given(p, max_grad_norm=None)),
        _moment("lion-clipped-one-by-one", "each gradient clipped by its own norm", apply=_clipped_one_by_one),
    ),
    "sgd": (
        _second("sgd-momentum-missing", "no momentum", apply=lambda p: _given(p, momentum=0.0)),
        _second("sgd-momentum-off", "momentum of 0.91 for 0.9", apply=lambda p: _given(p, momentum=0.91)),
        _fault("sgd-dampened", "the gradient enters by 1 - momentum", apply=_update("SGD", _dampened)),
        _fault("sgd-nesterov", "Nesterov's momentum", apply=_update("SGD", _nesterov)),
        _second("sgd-decay-decoupled", "decay is no part of the momentum", apply=_update("SGD", _decay_apart)),
        _fault("sgd-decay-missing", "no decay", apply=lambda p: _decays(p, lambda model: set())),
        _fault("sgd-not-clipped", "gradients are not clipped", apply=lambda p: _given(p, max_grad_norm=None)),
    ),
    "adafactor": (
        _fault("adafactor-wrong-axis", "factored over the wrong axis", apply=_second_moment(_wrong_axis)),
        _fault("adafactor-not-factored", "the second moment is not factored", apply=_second_moment(_whole)),
        _second(
            "adafactor-decay-rate",
            "the moments decay by an exponent of -0.4",
            apply=_second_moment(lambda plain, self, square, share, moments: plain(self, square, share**0.5, moments)),
        ),
        _fault(
            "adafactor-rate-absolute",
            "the rate is not relative to a parameter's size",
            apply=lambda p: _of_adafactor(p, "relative_rate", lambda self, parameter, step, rate: rate),
        ),
        _fault(
            "adafactor-update-not-clipped",
            "the update's own size is not clipped",
            apply=lambda p: _of_adafactor(p, "clip_update", lambda self, update: update),
        ),
        _fault("adafactor-epsilon", "an epsilon of 1e-30", apply=lambda p: [(p.optimizer, "EPSILON", 1e-30)]),
        _fault("adafactor-decay-coupled", "decay in the gradient", apply=_update("Adafactor", _decay_in_gradient)),
    ),
}
