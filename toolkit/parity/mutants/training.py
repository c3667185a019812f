"""Faults of the optimizer step: what a port of the training loop gets wrong. They are the same for every model."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.parity.mutants.fault import Mutant, settings


def _given(port, **changes):
    """Use other settings than those that were asked for."""
    create = port.optimizer.create
    return [(port.optimizer, "create", lambda *model, **given: create(*model, **{**given, **changes}))]


def _rate_times(port, factor: float):
    return _made(port, lambda made: settings(made._learning_rate, base_lr=factor * made._learning_rate.base_lr))


def _decays(port, chosen: Callable):
    return [(port.optimizer, "decayed_parameters", chosen)]


def _names(model) -> set[str]:
    return {parameter.name for parameter in model.parameters()}


def _made(port, change: Callable):
    """Change the optimizer once it is made."""
    create = port.optimizer.create

    def made(*model, **given):
        optimizer = create(*model, **given)
        change(optimizer)
        return optimizer

    return [(port.optimizer, "create", made)]


def _coupled_decay(port):
    """Add decay to the gradient, as Adam (not AdamW) does."""

    def adam(kind, model, rate, *, weight_decay, beta1, beta2, epsilon, max_grad_norm):
        return port.paddle.optimizer.Adam(
            rate,
            beta1,
            beta2,
            epsilon,
            model.parameters(),
            weight_decay,
            port.optimizer.ClipGradByGlobalNorm(max_grad_norm),
        )

    return [(port.optimizer, "create", adam)]


def _clipped_one_by_one(port):
    plain = port.optimizer.ClipGradByGlobalNorm
    clip = {"_dygraph_clip": lambda self, pairs: [plain._dygraph_clip(self, [pair])[0] for pair in pairs]}
    own = type("OneByOne", (plain,), clip)
    return _made(port, lambda made: settings(made, _grad_clip=own(made._grad_clip.clip_norm)))


TRAINING: tuple[Mutant, ...] = (
    Mutant("decay-on-all", "weight decay on biases and norms too", "updated:", lambda p: _decays(p, _names)),
    Mutant("decay-on-none", "no weight decay", "updated:", lambda p: _decays(p, lambda model: set())),
    Mutant("decay-coupled", "weight decay as a part of the gradient", "updated:", _coupled_decay),
    Mutant("rate-off", "the learning rate a thousandth too large", "learning_rate", lambda p: _rate_times(p, 1.001)),
    Mutant("beta1-off", "beta1 of 0.91 for 0.9", "#2", lambda p: _given(p, beta1=0.91)),
    Mutant("beta2-off", "beta2 of 0.99 for 0.999", "#2", lambda p: _given(p, beta2=0.99)),
    Mutant("no-momentum", "no first moment", "#2", lambda p: _given(p, beta1=0.0)),
    Mutant("adam-epsilon", "epsilon of 1e-7 for 1e-8", "updated:", lambda p: _given(p, epsilon=1e-7)),
    Mutant("clip-missing", "gradients not clipped", "updated:", lambda p: _given(p, max_grad_norm=None)),
    Mutant("clip-one-by-one", "every gradient clipped by its own norm", "updated:", _clipped_one_by_one),
    Mutant(
        "clip-without-epsilon",
        "gradients divided by their norm without torch's 1e-6",
        "updated:",
        lambda p: [(p.optimizer, "NORM_EPSILON", 0.0)],
    ),
    Mutant(
        "gradients-kept",
        "gradients not cleared after an update",
        "#2",
        lambda p: _made(p, lambda optimizer: settings(optimizer, clear_grad=lambda: None)),
    ),
    Mutant(
        "parameter-forgotten",
        "the first parameter is not trained",
        "updated:",
        lambda p: _made(p, lambda optimizer: settings(optimizer, _parameter_list=optimizer._parameter_list[1:])),
    ),
)
