"""Faults of any Paddle layer, made from its tree of modules, for trials of the gate on a user's port.

A fault's name defines it: ``KIND:MODULE``, or ``KIND:MODULE+OTHER`` with paths of the port's modules. The layers are
changed after the weights of the comparison have been loaded.

A function that changes a layer gets a ``context``: ``paddle``, ``F``, the module ``replaced_operations``, the ``paths``
of the fault, and the port's ``layers`` by path.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Mutant, PortModules, wrap_method

#: Attributes of layers that hold the epsilon of a norm.
EPSILONS = ("_epsilon", "epsilon", "variance_epsilon", "eps")
#: Attributes of layers that hold an activation.
ACTIVATIONS = ("activation", "act", "act_fn", "activation_fn", "hidden_act")
#: Relative error of the fault ``slightly-off``.
SMALL_ERROR = 1e-6


def _enlarge_epsilon(context: SimpleNamespace, layer: Any) -> None:
    """Multiply the epsilon of a normalization layer by 10.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    name = next(name for name in EPSILONS if hasattr(layer, name))
    setattr(layer, name, 10 * getattr(layer, name))


def _remove_bias(context: SimpleNamespace, layer: Any) -> None:
    """Replace the layer's bias with zeros.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    _replace_parameter(layer, "bias", context.paddle.zeros_like)


def _swap_weights(context: SimpleNamespace, layer: Any, other_layer: Any) -> None:
    """Exchange the weights of two layers.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
        other_layer: other layer to change.
    """
    first, second = layer.weight, other_layer.weight
    _replace_parameter(layer, "weight", lambda _: second)
    _replace_parameter(other_layer, "weight", lambda _: first)


def _transpose_weight(context: SimpleNamespace, layer: Any) -> None:
    """Transpose the weight of the layer.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    _replace_parameter(layer, "weight", lambda weight: weight.T)


def _disable_dropout(context: SimpleNamespace, layer: Any) -> None:
    """Keep all values in the layer's dropout.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    if isinstance(layer, context.paddle.nn.Dropout):
        layer.p = 0
    else:
        draw_mask = lambda draws, p, shape: context.paddle.full(shape, 1 - p, "float64")  # noqa: E731
        _replace_draws(context, layer, context.paths[0], draw_mask=draw_mask)


def _skip_dropout_scale(context: SimpleNamespace, layer: Any) -> None:
    """Omit the factor 1 / (1 - p) of the layer's dropout.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    if isinstance(layer, context.paddle.nn.Dropout):
        layer.mode = "downscale_in_infer"
    else:
        draw_mask = lambda draws, p, shape: draws.draw_mask(p, shape).astype("float64") * (1 - p)  # noqa: E731
        _replace_draws(context, layer, context.paths[0], draw_mask=draw_mask)


def _halve_dropout_rate(context: SimpleNamespace, layer: Any) -> None:
    """Drop values with half of the probability p that the layer's dropout has.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    if isinstance(layer, context.paddle.nn.Dropout):
        layer.p = layer.p / 2
    else:
        scale = lambda p: (1 - p) / (1 - p / 2)  # noqa: E731
        draw_mask = lambda draws, p, shape: draws.draw_mask(p / 2, shape).astype("float64") * scale(p)  # noqa: E731
        _replace_draws(context, layer, context.paths[0], draw_mask=draw_mask)


def _share_dropout_mask(context: SimpleNamespace, first_layer: Any, second_layer: Any) -> None:
    """Use the first layer's dropout mask in the second layer, too.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        first_layer: layer whose mask is used.
        second_layer: layer that gets the mask.
    """
    masks: list[Any] = []

    def draw_first(draws: Any, p: float, shape: Sequence[int]) -> Any:
        masks.append(draws.draw_mask(p, shape))
        return masks[-1]

    _replace_draws(context, first_layer, context.paths[0], draw_mask=draw_first)
    _replace_draws(context, second_layer, context.paths[1], draw_mask=lambda draws, p, shape: masks[-1])


def _drop_in_evaluation(context: SimpleNamespace, layer: Any) -> None:
    """Let the layer drop values in evaluation, too.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    layer.forward = lambda x: context.F.dropout(x, layer.p, axis=layer.axis, mode=layer.mode)


def _replace_draws(context: SimpleNamespace, layer: Any, path: str, **replacements: Callable) -> None:
    """Let ``replacements`` return the random choices that the layer itself makes while it runs.

    Args:
        context: context of a function that changes a layer.
        layer: layer of the port.
        path: path of the layer.
        replacements: functions that replace methods of the draws (:class:`_ReplacedDraws`).
    """
    forward, operations = layer.forward, context.replaced_operations

    def forward_with_replacements(*args: Any, **kwargs: Any) -> Any:
        if operations._draws is None:
            return forward(*args, **kwargs)
        with operations.use_draws(_ReplacedDraws(operations._draws, path, **replacements)):
            return forward(*args, **kwargs)

    # Not setattr: PaddleNLP's models change values that are set as attributes.
    vars(layer)["forward"] = forward_with_replacements


class _ReplacedDraws:
    """Replayed draws, with replacements for one layer.

    Args:
        draws: replayed draws of the step.
        path: path of the layer.
        replacements: function by the name of the method of ``draws`` that it replaces.
    """

    def __init__(self, draws: Any, path: str, **replacements: Callable) -> None:
        self.draws, self.path, self.replacements = draws, path, replacements

    def __getattr__(self, name: str) -> Any:
        replacement = self.replacements.get(name)
        if replacement is None or self.draws.stack.module != self.path:
            return getattr(self.draws, name)
        return lambda *arguments, **options: replacement(self.draws, *arguments, **options)


def _choose_second_best(context: SimpleNamespace, layer: Any) -> None:
    """Let the layer choose the next element instead of the last of its top-k or sorted elements.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """

    def choose(recorded_draws: Any, choice_scores: Any, own_choice: Any, *, descending: bool) -> Any:
        count = own_choice.shape[-1]
        ranks = [*range(count - 1), count] if count < choice_scores.shape[-1] else [1, 0, *range(2, count)]
        # Paddle's own function, since a replayed one would return R64's choice.
        order = context.paddle.argsort.paddle_original(choice_scores.detach(), -1, descending)
        return recorded_draws.replay_choice(
            choice_scores, order.index_select(context.paddle.to_tensor(ranks), -1), descending=descending
        )

    _replace_draws(context, layer, context.paths[0], replay_choice=choose)


def mask_arguments(layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a layer's arguments that are masks: tensors of at least two axes."""
    bound = inspect.signature(type(layer).forward).bind(layer, *args, **kwargs)
    for name, value in bound.arguments.items():
        if "mask" in name.lower() and getattr(value, "ndim", 0) >= 2:
            yield name


def _shift_mask(context: SimpleNamespace, layer: Any) -> None:
    """Shift each mask among the layer's arguments by one position.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    forward = layer.forward

    def forward_shifted(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(type(layer).forward).bind(layer, *args, **kwargs)
        for name in mask_arguments(layer, args, kwargs):
            bound.arguments[name] = context.paddle.roll(bound.arguments[name], 1, -1)
        return forward(*bound.args[1:], **bound.kwargs)

    vars(layer)["forward"] = forward_shifted


def _shift_rows(context: SimpleNamespace, layer: Any) -> None:
    """Move each row of the layer's weight up by one, so that each token id reads the next row.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    _replace_parameter(layer, "weight", lambda weight: context.paddle.roll(weight, -1, 0))


def _untie_weight(context: SimpleNamespace, _: Any) -> None:
    """Give the first of two places that share a weight its own copy.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        _: layer with the weight; not used.
    """
    path, _, leaf = context.paths[0].rpartition(".")
    parent_path, _, name = path.rpartition(".")
    layer = context.layers[path]
    if sum(other_layer is layer for other_layer in context.layers.values()) > 1:  # one layer in two places
        context.layers[parent_path]._sub_layers[name] = copy.deepcopy(layer)
    else:
        layer._parameters[leaf] = copy.deepcopy(layer._parameters[leaf])


def _replace_activation(context: SimpleNamespace, layer: Any) -> None:
    """Replace the layer's activation function with SiLU.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    name = next((name for name in ACTIVATIONS if callable(getattr(layer, name, None))), None)
    if name is None:
        layer.forward = context.F.silu
    elif isinstance(getattr(layer, name), context.paddle.nn.Layer):
        getattr(layer, name).forward = context.F.silu
    else:
        setattr(layer, name, context.F.silu)


def _detach_input(context: SimpleNamespace, layer: Any) -> None:
    """Stop the gradient at the layer's first input.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    forward = layer.forward
    layer.forward = lambda x, *args, **kwargs: forward(x.detach(), *args, **kwargs)


def _double_gradient(context: SimpleNamespace, layer: Any) -> None:
    """Double the gradient that flows through the layer, without a change of its output.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    forward = layer.forward

    def forward_doubled(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        return result + (result - result.detach())

    layer.forward = forward_doubled


def _scale_output(context: SimpleNamespace, layer: Any) -> None:
    """Multiply the layer's output by 1 plus :data:`SMALL_ERROR`.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs) * (1 + SMALL_ERROR)


def _round_input(context: SimpleNamespace, layer: Any) -> None:
    """Round the layer's first input to float32.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    cast, forward = context.paddle._C_ops.cast, layer.forward

    def forward_rounded(x: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(cast(cast(x, context.paddle.float32), x.dtype), *args, **kwargs)

    layer.forward = forward_rounded


def _freeze_weight(context: SimpleNamespace, layer: Any) -> None:
    """Compute no gradient of the layer's weight.

    Args:
        context: Paddle's modules; not used.
        layer: layer to change.
    """
    layer.weight.stop_gradient = True


def _copy_weight(context: SimpleNamespace, layer: Any) -> None:
    """Let the layer use a copy of its weight, so that no gradient reaches the parameter.

    Args:
        context: Paddle's modules, and the layers of the port with their paths.
        layer: layer to change.
    """
    _replace_parameter(layer, "weight", lambda weight: weight.detach())


def _replace_parameter(layer: Any, name: str, change_parameter: Callable) -> None:
    """Let ``change_parameter`` replace one of the layer's parameters whenever the layer runs."""
    forward = layer.forward

    def forward_changed(*args: Any, **kwargs: Any) -> Any:
        original_parameter = layer._parameters[name]
        layer._parameters[name] = change_parameter(original_parameter)
        try:
            return forward(*args, **kwargs)
        finally:
            layer._parameters[name] = original_parameter

    layer.forward = forward_changed


#: Kind of fault -> its description, and the function that changes one or two layers.
FAULTS: dict[str, tuple[str, Callable[..., None]]] = {
    "epsilon": ("its epsilon is ten times as large", _enlarge_epsilon),
    "no-bias": ("its bias is not added", _remove_bias),
    "swapped": ("two weights of one shape are swapped", _swap_weights),
    "transposed": ("its square weight is transposed", _transpose_weight),
    "dropout-off": ("nothing is dropped", _disable_dropout),
    "dropout-unscaled": ("what dropout keeps is not scaled up", _skip_dropout_scale),
    "dropout-rate": ("half as much is dropped", _halve_dropout_rate),
    "dropout-shared": ("the second drops what the first drops", _share_dropout_mask),
    "dropout-always": ("it drops in evaluation, too", _drop_in_evaluation),
    "mask-shifted": ("its mask is shifted by one", _shift_mask),
    "index-shifted": ("what it looks up is one row further on", _shift_rows),
    "second-best": ("it chooses the second best", _choose_second_best),
    "untied": ("it is no longer the weight that it is tied to", _untie_weight),
    "activation": ("SiLU in place of its activation", _replace_activation),
    "detached": ("its input is detached", _detach_input),
    "gradient-doubled": ("what comes back to it is doubled", _double_gradient),
    "slightly-off": (f"its output is off by {SMALL_ERROR:.0e} of itself", _scale_output),
    "in-float32": ("its input passes through float32", _round_input),
    "frozen": ("its weight takes no gradient", _freeze_weight),
    "copied": ("a copy of its weight is used, which takes no gradient", _copy_weight),
}


#: Kind of a fault in a comparison that makes a mask. Its name has the source location instead of a module.
BOUND_KIND = "bound-shifted"
#: Reason why such a fault has no effect if the mask excludes nothing.
UNREACHED_BOUND = "the mask excludes nothing on this batch; use longer texts or a smaller bound"

#: Kind of fault -> reason if the fault has no effect.
HARMLESS = {
    BOUND_KIND: "no position of the batch lies at the bound",
    "no-bias": "what follows depends on differences alone, as a softmax does, or is not used",
    "swapped": "both weights are equal, or what they make is not used",
    "transposed": "the weight is symmetric, or what it makes is not used",
    "mask-shifted": "the mask hides nothing that would be seen",
    "index-shifted": "the rows are equal, or what is looked up is not used",
    "activation": "what it gives is not used",
    "detached": "its input takes no gradient, or no way back leads through it",
    "in-float32": "what comes in is float32, or what it gives is not used",
}
#: The same reason for all other kinds.
NOT_USED = "nothing that is computed depends on it"


def module_fault(kind: str, *paths: str, culprit: str = "", operation: str = "") -> Mutant:
    """Return a fault of one or two modules of a pair's port.

    Args:
        kind: key of :data:`FAULTS`.
        paths: paths of the modules in the port.
        culprit: attribute of :class:`.fault.Mutant`, with names of the reference's modules.
        operation: attribute of :class:`.fault.Mutant`, with names of the reference's modules.
    """
    description, change = FAULTS[kind]

    def apply(port: PortModules) -> list[tuple[Any, str, Any]]:
        pair = "toolkit.parity.families.pair"
        paths_of = importlib.import_module("toolkit.parity.candidate.step").paths_of
        replaced_operations = importlib.import_module(f"{pair}.replaced_functions")

        def load_changed(load: Callable, step: Any) -> None:
            load(step)
            layers = {path: layer for layer, layer_paths in paths_of(step.model).items() for path in layer_paths}
            paddle = port.paddle
            context = SimpleNamespace(
                paddle=paddle,
                F=paddle.nn.functional,
                replaced_operations=replaced_operations,
                paths=paths,
                layers=layers,
            )
            change(context, *(layers.get(path) for path in paths))

        return wrap_method(importlib.import_module(f"{pair}.candidate").PairStep, "_load", load_changed)

    name = f"{kind}:{'+'.join(paths)}"
    return Mutant(name, f"{' and '.join(paths)}: {description}", culprit, apply, operation=operation)


def bound_fault(site: str, culprit: str = "", unreached_reason: str = "") -> Mutant:
    """Return a fault of a comparison that makes a mask: its bound includes one position more.

    Args:
        site: ``file:line:column`` of the comparison in the port's code.
        culprit: attribute of :class:`.fault.Mutant`.
        unreached_reason: attribute of :class:`.fault.Mutant`.
    """

    def apply(port: PortModules) -> list[tuple[Any, str, Any]]:
        return [(importlib.import_module("toolkit.parity.families.pair.calls"), "shifted_site", site)]

    description = f"{site}: its bound includes one position more"
    return Mutant(f"{BOUND_KIND}:{site}", description, culprit, apply, unreached_reason=unreached_reason)


def parse_mutant(name: str) -> Mutant | None:
    """Return the fault of this module with the given name, or None for any other name."""
    kind, colon, paths = name.partition(":")
    if kind == BOUND_KIND:
        return bound_fault(paths)
    return module_fault(kind, *paths.split("+")) if colon and kind in FAULTS else None
