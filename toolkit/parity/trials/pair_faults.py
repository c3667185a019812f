"""Faults of a user's pair, which are made from the port's own tree of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants import Mutant
from toolkit.parity.mutants.generic import UNREACHED_BOUND, bound_fault, module_fault
from toolkit.parity.pairs.describe import Sides

#: Yields the faults of a kind wherever they can be.
Sites = Callable[[Sides], Iterator[Mutant]]


def faults_of(sides: Sides) -> list[Mutant]:
    """Return faults of every kind that the port can have, each with what the gate must name."""
    found = [one for sites, chosen in _SITES for one in chosen(list(sites(sides)))]
    return list({one.name: one for one in found}.values())


def untried(sides: Sides, faults: Sequence[Mutant]) -> str:
    """Return a sentence that counts the parameters, functions and masks of the port without a fault."""
    places = {path for fault in faults for path in fault.name.partition(":")[2].split("+")}
    port = sides.port
    parameters = [one for one in port.parameters if not places & {one.module, one.name}]
    bounds, masked_modules = {mask.site for mask in port.masks}, _masked_modules(sides)
    counts = {
        "parameters": (len(parameters), len(port.parameters)),
        "operations": (port.num_operations - len(bounds & places), port.num_operations),
        "masks": (len(bounds - places) + len(set(masked_modules) - places), len(bounds) + len(masked_modules)),
    }
    return f"no fault at all in {', '.join(f'{few} of {many} {kind}' for kind, (few, many) in counts.items())}"


def _spread(found: Sequence[Mutant]) -> list[Mutant]:
    """Return the first and the last."""
    return list(dict.fromkeys((found[0], found[-1]))) if found else []


def _first_of_each(found: Sequence[Mutant]) -> list[Mutant]:
    """Return the first fault for each name of a module, as of all that map queries: each name plays another part."""
    parts: dict[str, Mutant] = {}
    for one in found:
        parts.setdefault(one.name.rpartition(".")[2], one)
    return list(parts.values())


def _module(sides: Sides, path: str) -> str:
    """Return the counterpart of a module of the port, or of the nearest around it that has one; else nothing."""
    of_port = {port: reference for reference, port in sides.map.modules.items()}
    while path and path not in of_port:
        path = path.rpartition(".")[0]
    return of_port.get(path, "")


def _module_after(sides: Sides, path: str) -> str:
    """Return the counterpart of the first module that runs after one of the port and has one: there a fault of a layer
    without parameters shows. For one with layers inside, return its own: after which of them it is, is not known."""
    if any(one.name.startswith(f"{path}.") for one in sides.port.parameters):
        return _module(sides, path)
    of_port = {port: reference for reference, port in sides.map.modules.items()}
    order = [module.name for module in sides.port.modules]
    return next((of_port[name] for name in order[order.index(path) + 1 :] if name in of_port), "")


def _linears(sides: Sides, square: bool = False) -> Iterator[ParameterFacts]:
    matched = {match.port for match in sides.map.parameters}
    for one in sides.port.parameters:
        is_map = one.transposed and one.name.endswith("weight")  # of a Linear or a subclass, not of a Bilinear
        if is_map and one.order is not None and one.name in matched and (not square or one.shape[0] == one.shape[1]):
            yield one


def _of_linears(kind: str, square: bool = False, biased: bool = False) -> Sites:
    def sites(sides: Sides) -> Iterator[Mutant]:
        biases = {one.module for one in sides.port.parameters if one.name.endswith("bias")}
        for one in _linears(sides, square):
            if not biased or one.module in biases:
                yield module_fault(kind, one.module, culprit=_module(sides, one.module))

    return sites


def _detached(sides: Sides) -> Iterator[Mutant]:
    """Let the gate name the way back through the module: its output is right."""
    for one in _linears(sides):
        yield module_fault("detached", one.module, operation=f"gradient:input:{_module(sides, one.module)}")


def _swapped(sides: Sides) -> Iterator[Mutant]:
    linears = list(_linears(sides))
    for index, one in enumerate(linears):
        for other in linears[index + 1 :]:
            if one.shape == other.shape and one.module.rpartition(".")[0] == other.module.rpartition(".")[0]:
                yield module_fault("swapped", one.module, other.module, culprit=_module(sides, one.module))
                break


def _of_modules(kind: str, has: str) -> Sites:
    def sites(sides: Sides) -> Iterator[Mutant]:
        draws = {name.partition(":")[2] for name in sides.map.draws}
        for module in dict.fromkeys(sides.port.modules):
            if has in module.has and (has != "dropout" or module.name in draws):
                named = _module if has == "epsilon" else _module_after
                yield module_fault(kind, module.name, culprit=named(sides, module.name))

    return sites


def _dropout(kind: str, in_a_layer: bool) -> Sites:
    """Let the gate name the reference's draw, for dropout in a layer of its own or in a function."""

    def sites(sides: Sides) -> Iterator[Mutant]:
        for path, reference in _dropouts(sides, in_a_layer).items():
            yield module_fault(kind, path, culprit=_of_draw(reference))

    return sites


def _dropouts(sides: Sides, in_a_layer: bool) -> dict[str, str]:
    """Return the port's modules that drop, and the reference's name of the first draw of each."""
    layers = {module.name for module in sides.port.modules if "dropout" in module.has}
    found: dict[str, str] = {}
    for port, reference in sides.map.draws.items():
        name = TensorName.parse(port)
        if name.kind == "dropout" and (name.module in layers) == in_a_layer:
            found.setdefault(name.module, reference)
    return found


def _of_draw(reference: str) -> str:
    """Return what the names of all draws of a module have in common."""
    name = TensorName.parse(reference)
    return f"{name.kind}:{name.module}" if name.module else name.kind


def _unscaled(sides: Sides) -> Iterator[Mutant]:
    for path in _dropouts(sides, False):
        yield module_fault("dropout-unscaled", path, culprit=_module_after(sides, path))


def _shared(sides: Sides) -> Iterator[Mutant]:
    """Pair dropouts that draw masks of one size, one after the other."""
    matched = {draw.name for draw in sides.port.draws if draw.name in sides.map.draws}
    made = [draw for draw in sides.port.draws if draw.kind == "dropout" and draw.name in matched]
    for index, one in enumerate(made):
        for other in made[index + 1 :]:
            here, there = (TensorName.parse(draw.name) for draw in (one, other))
            once = not here.call and not there.call and here.module != there.module
            if once and one.shape == other.shape and one.rate == other.rate:
                expected = _of_draw(sides.map.draws[other.name])
                yield module_fault("dropout-shared", here.module, there.module, culprit=expected)
                break


def _masks(sides: Sides) -> Iterator[Mutant]:
    """Yield a fault for each innermost module that is given a mask."""
    for path in _masked_modules(sides):
        yield module_fault("mask-shifted", path, culprit=_module_after(sides, path))


def _masked_modules(sides: Sides) -> list[str]:
    """Return the innermost modules that are given a mask."""
    paths = list(dict.fromkeys(module.name for module in sides.port.modules if "mask" in module.has))
    return [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]


def _bounds(sides: Sides) -> Iterator[Mutant]:
    """Yield a fault for each comparison that makes a mask. It names the first module that shows the fault."""
    for site in dict.fromkeys(mask.site for mask in sides.port.masks):
        masks = [mask for mask in sides.port.masks if mask.site == site]
        reason = "" if any(mask.hides for mask in masks) else UNREACHED_BOUND
        yield bound_fault(site, _module(sides, masks[0].module), reason)


def _embeddings(sides: Sides) -> Iterator[Mutant]:
    matched = {match.port for match in sides.map.parameters}
    for one in sides.port.parameters:
        if one.role == "embedding" and one.order is not None and one.name in matched:
            yield module_fault("index-shifted", one.module, culprit=_module(sides, one.module))


def _untied(sides: Sides) -> Iterator[Mutant]:
    of_port = {match.port: match.reference for match in sides.map.parameters}
    for one in sides.port.parameters:
        for other in one.tied:
            if one.name in of_port:
                yield module_fault("untied", other, culprit=of_port[one.name])


def _choices(sides: Sides) -> Iterator[Mutant]:
    for port, reference in sides.map.draws.items():
        if TensorName.parse(port).kind == "choice":
            yield module_fault("second-best", TensorName.parse(port).module, culprit=_of_draw(reference))


#: Where faults can be, and which of these places are tried.
_SITES: list[tuple[Sites, Callable[[Sequence[Mutant]], list[Mutant]]]] = [
    (_of_modules("epsilon", "epsilon"), _spread),
    (_of_linears("no-bias", biased=True), _first_of_each),
    (_swapped, _spread),
    (_of_linears("transposed", square=True), _spread),
    *((_dropout("dropout-off", in_a_layer), _spread) for in_a_layer in (True, False)),
    *((_dropout("dropout-rate", in_a_layer), _spread) for in_a_layer in (True, False)),
    (_of_modules("dropout-unscaled", "dropout"), _spread),
    (_unscaled, _spread),
    (_dropout("dropout-always", True), _spread),
    (_shared, _spread),
    (_masks, _spread),
    (_bounds, list),
    (_embeddings, _spread),
    (_untied, _spread),
    (_choices, _spread),
    (_of_modules("activation", "activation"), _spread),
    (_detached, _spread),
    (_of_linears("gradient-doubled"), _spread),
    (_of_linears("slightly-off"), _spread),
    (_of_modules("in-float32", "epsilon"), _spread),
    (_of_linears("frozen"), _spread),
    (_of_linears("copied"), _spread),
]
