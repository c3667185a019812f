"""Mutants of a user's pair, which are found in the port's own tree of modules.

A mutant is a deliberate fault of the port. Its culprit is the tensor that the gate must name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants import Mutant
from toolkit.parity.mutants.generic import UNREACHED_BOUND, bound_fault, module_fault
from toolkit.parity.pairs.describe import Sides

#: Function that yields all mutants of one kind that the port of a pair can have, given the descriptions of both sides.
FaultFinder = Callable[[Sides], Iterator[Mutant]]


def faults_of(sides: Sides) -> list[Mutant]:
    """Return mutants of every kind that the port of a pair can have, each with its expected culprit.

    Args:
        sides: descriptions of both sides.
    """
    faults = [fault for find_faults, select_faults in _CATALOGUE for fault in select_faults(list(find_faults(sides)))]
    return list({fault.name: fault for fault in faults}.values())


def count_untried(sides: Sides, faults: Sequence[Mutant]) -> str:
    """Return a sentence that counts the parameters, functions and masks of the port without a mutant.

    Args:
        sides: descriptions of both sides.
        faults: the mutants that are tried.
    """
    fault_sites = {path for fault in faults for path in fault.name.partition(":")[2].split("+")}
    port = sides.port
    untried_parameters = [
        parameter for parameter in port.parameters if not fault_sites & {parameter.module, parameter.name}
    ]
    bounds, masked_modules = {mask.site for mask in port.masks}, _find_masked_modules(sides)
    counts = {
        "parameters": (len(untried_parameters), len(port.parameters)),
        "operations": (port.num_operations - len(bounds & fault_sites), port.num_operations),
        "masks": (
            len(bounds - fault_sites) + len(set(masked_modules) - fault_sites),
            len(bounds) + len(masked_modules),
        ),
    }
    parts = [f"{num_untried} of {num_parts} {kind}" for kind, (num_untried, num_parts) in counts.items()]
    return f"no fault at all in {', '.join(parts)}"


def _first_and_last(faults: Sequence[Mutant]) -> list[Mutant]:
    """Return the first and the last mutant of one kind."""
    return list(dict.fromkeys((faults[0], faults[-1]))) if faults else []


def _first_of_each(faults: Sequence[Mutant]) -> list[Mutant]:
    """Return the first mutant of each module name, such as ``query``, since each name has another role."""
    first_faults: dict[str, Mutant] = {}
    for fault in faults:
        first_faults.setdefault(fault.name.rpartition(".")[2], fault)
    return list(first_faults.values())


def _counterpart(sides: Sides, path: str) -> str:
    """Return the reference's path of a module of the port, or of its nearest parent with a counterpart.

    The result is empty if neither has a counterpart.

    Args:
        sides: descriptions of both sides.
        path: path of the module in the port.
    """
    counterparts = {port: reference for reference, port in sides.map.modules.items()}
    while path and path not in counterparts:
        path = path.rpartition(".")[0]
    return counterparts.get(path, "")


def _next_counterpart(sides: Sides, path: str) -> str:
    """Return the reference's path of the first module that shows a fault of a module without parameters.

    This is the counterpart of the next module of the port that runs and has a counterpart. If the module contains
    parameters, it is the counterpart of the module itself, since the fault may be before any of its layers. The result
    is empty if there is none.

    Args:
        sides: descriptions of both sides.
        path: path of the module in the port.
    """
    if any(parameter.name.startswith(f"{path}.") for parameter in sides.port.parameters):
        return _counterpart(sides, path)
    counterparts = {port: reference for reference, port in sides.map.modules.items()}
    order = [module.name for module in sides.port.modules]
    return next((counterparts[name] for name in order[order.index(path) + 1 :] if name in counterparts), "")


def _find_linears(sides: Sides, *, is_square: bool = False) -> Iterator[ParameterFacts]:
    """Yield the weights of the port's linear maps that ran and have a counterpart in the reference.

    Args:
        sides: descriptions of both sides.
        is_square: whether to yield only square weights.
    """
    matched_names = {match.port for match in sides.map.parameters}
    for parameter in sides.port.parameters:
        is_linear = parameter.transposed and parameter.name.endswith("weight")  # not of a Bilinear
        if (
            is_linear
            and parameter.order is not None
            and parameter.name in matched_names
            and (not is_square or parameter.shape[0] == parameter.shape[1])
        ):
            yield parameter


def _linear_faults(kind: str, *, is_square: bool = False, has_bias: bool = False) -> FaultFinder:
    """Return a function that finds mutants of linear maps, whose culprit is the output of the map.

    Args:
        kind: key of :data:`.generic.FAULTS`.
        is_square: whether only square maps can have the fault.
        has_bias: whether only maps with a bias can have the fault.
    """

    def find_faults(sides: Sides) -> Iterator[Mutant]:
        """Yield a mutant of this kind for each linear map that can have it."""
        biased_modules = {parameter.module for parameter in sides.port.parameters if parameter.name.endswith("bias")}
        for parameter in _find_linears(sides, is_square=is_square):
            if not has_bias or parameter.module in biased_modules:
                yield module_fault(kind, parameter.module, culprit=_counterpart(sides, parameter.module))

    return find_faults


def _detached_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants whose linear map passes no gradient on to its input.

    Their output is correct, so the gate must name the backward of the map as the wrong operation.
    """
    for parameter in _find_linears(sides):
        yield module_fault(
            "detached", parameter.module, operation=f"gradient:input:{_counterpart(sides, parameter.module)}"
        )


def _swap_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants that swap the weights of two linear maps of equal shape in the same parent module."""
    linears = list(_find_linears(sides))
    for index, first in enumerate(linears):
        for second in linears[index + 1 :]:
            if first.shape == second.shape and first.module.rpartition(".")[0] == second.module.rpartition(".")[0]:
                yield module_fault("swapped", first.module, second.module, culprit=_counterpart(sides, first.module))
                break


def _module_faults(kind: str, setting: str) -> FaultFinder:
    """Return a function that finds mutants of modules with a certain setting.

    Args:
        kind: key of :data:`.generic.FAULTS`.
        setting: one of :attr:`.ModuleFacts.has`, which the fault changes.
    """

    def find_faults(sides: Sides) -> Iterator[Mutant]:
        """Yield a mutant of this kind for each module that runs and has the setting."""
        drawing_modules = {name.partition(":")[2] for name in sides.map.draws}
        for module in dict.fromkeys(sides.port.modules):
            if setting in module.has and (setting != "dropout" or module.name in drawing_modules):
                find_culprit = _counterpart if setting == "epsilon" else _next_counterpart
                yield module_fault(kind, module.name, culprit=find_culprit(sides, module.name))

    return find_faults


def _dropout_faults(kind: str, *, is_layer: bool) -> FaultFinder:
    """Return a function that finds mutants of dropout, whose culprit is the reference's draw.

    Args:
        kind: key of :data:`.generic.FAULTS`.
        is_layer: whether the dropout is a separate layer, not a call of a function.
    """

    def find_faults(sides: Sides) -> Iterator[Mutant]:
        """Yield a mutant of this kind for each dropout layer, or each module that calls a dropout function."""
        for path, reference in _find_dropouts(sides, are_layers=is_layer).items():
            yield module_fault(kind, path, culprit=_common_draw_name(reference))

    return find_faults


def _find_dropouts(sides: Sides, *, are_layers: bool) -> dict[str, str]:
    """Return the reference's name of the first dropout mask that each of the port's modules draws, by module.

    Args:
        sides: descriptions of both sides.
        are_layers: whether to return dropout layers, otherwise modules that call a dropout function.
    """
    layers = {module.name for module in sides.port.modules if "dropout" in module.has}
    first_draws: dict[str, str] = {}
    for port, reference in sides.map.draws.items():
        name = TensorName.parse(port)
        if name.kind == "dropout" and (name.module in layers) == are_layers:
            first_draws.setdefault(name.module, reference)
    return first_draws


def _common_draw_name(reference_name: str) -> str:
    """Return the common part of the names of all draws of a module: `dropout:drop#2` -> `dropout:drop`."""
    name = TensorName.parse(reference_name)
    return f"{name.kind}:{name.module}" if name.module else name.kind


def _unscaled_dropout_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants whose calls of a dropout function do not scale the kept elements."""
    for path in _find_dropouts(sides, are_layers=False):
        yield module_fault("dropout-unscaled", path, culprit=_next_counterpart(sides, path))


def _shared_dropout_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants that use one mask for two dropouts of the same shape and rate."""
    matched_names = {draw.name for draw in sides.port.draws if draw.name in sides.map.draws}
    dropouts = [draw for draw in sides.port.draws if draw.kind == "dropout" and draw.name in matched_names]
    for index, first in enumerate(dropouts):
        for second in dropouts[index + 1 :]:
            first_name, second_name = (TensorName.parse(draw.name) for draw in (first, second))
            draw_once = not first_name.call and not second_name.call and first_name.module != second_name.module
            if draw_once and first.shape == second.shape and first.rate == second.rate:
                culprit = _common_draw_name(sides.map.draws[second.name])
                yield module_fault("dropout-shared", first_name.module, second_name.module, culprit=culprit)
                break


def _mask_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield a mutant for each innermost module with a mask as an argument; the mutant shifts the mask."""
    for path in _find_masked_modules(sides):
        yield module_fault("mask-shifted", path, culprit=_next_counterpart(sides, path))


def _find_masked_modules(sides: Sides) -> list[str]:
    """Return the paths of the port's innermost modules with a mask as an argument."""
    paths = list(dict.fromkeys(module.name for module in sides.port.modules if "mask" in module.has))
    return [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]


def _bound_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield a mutant for each comparison of the port that produces a mask; the mutant changes the comparison's bound.

    Its culprit is the first module that shows the mask.
    """
    for site in dict.fromkeys(mask.site for mask in sides.port.masks):
        masks = [mask for mask in sides.port.masks if mask.site == site]
        reason = "" if any(mask.hides for mask in masks) else UNREACHED_BOUND
        yield bound_fault(site, _counterpart(sides, masks[0].module), reason)


def _embedding_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants that shift the indices of an embedding."""
    matched_names = {match.port for match in sides.map.parameters}
    for parameter in sides.port.parameters:
        if parameter.role == "embedding" and parameter.order is not None and parameter.name in matched_names:
            yield module_fault("index-shifted", parameter.module, culprit=_counterpart(sides, parameter.module))


def _untied_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants that untie a tied parameter."""
    counterparts = {match.port: match.reference for match in sides.map.parameters}
    for parameter in sides.port.parameters:
        for tied_name in parameter.tied:
            if parameter.name in counterparts:
                yield module_fault("untied", tied_name, culprit=counterparts[parameter.name])


def _choice_faults(sides: Sides) -> Iterator[Mutant]:
    """Yield mutants whose discrete choice takes the second best index."""
    for port, reference in sides.map.draws.items():
        if TensorName.parse(port).kind == "choice":
            yield module_fault("second-best", TensorName.parse(port).module, culprit=_common_draw_name(reference))


#: For each kind of mutants: the function that finds them, and the function that selects the mutants to try.
_CATALOGUE: list[tuple[FaultFinder, Callable[[Sequence[Mutant]], list[Mutant]]]] = [
    (_module_faults("epsilon", "epsilon"), _first_and_last),
    (_linear_faults("no-bias", has_bias=True), _first_of_each),
    (_swap_faults, _first_and_last),
    (_linear_faults("transposed", is_square=True), _first_and_last),
    *((_dropout_faults("dropout-off", is_layer=is_layer), _first_and_last) for is_layer in (True, False)),
    *((_dropout_faults("dropout-rate", is_layer=is_layer), _first_and_last) for is_layer in (True, False)),
    (_module_faults("dropout-unscaled", "dropout"), _first_and_last),
    (_unscaled_dropout_faults, _first_and_last),
    (_dropout_faults("dropout-always", is_layer=True), _first_and_last),
    (_shared_dropout_faults, _first_and_last),
    (_mask_faults, _first_and_last),
    (_bound_faults, list),
    (_embedding_faults, _first_and_last),
    (_untied_faults, _first_and_last),
    (_choice_faults, _first_and_last),
    (_module_faults("activation", "activation"), _first_and_last),
    (_detached_faults, _first_and_last),
    (_linear_faults("gradient-doubled"), _first_and_last),
    (_linear_faults("slightly-off"), _first_and_last),
    (_module_faults("in-float32", "epsilon"), _first_and_last),
    (_linear_faults("frozen"), _first_and_last),
    (_linear_faults("copied"), _first_and_last),
]
