"""The gate on trial with a pair of the user's: faults that are made from the port's own tree of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.followup import trace
from toolkit.parity.job import files
from toolkit.parity.job.build import job_of, scratch_job, workers_of
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import read_results
from toolkit.parity.job.synthetic import randomize_constants
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.verdict import judge
from toolkit.parity.mutants import Mutant
from toolkit.parity.mutants.generic import fault
from toolkit.parity.pairs.describe import Sides, described, write_pair
from toolkit.parity.trials.mutation import Trial, verdicts_on

#: Gives the faults of a kind wherever they can be.
Sites = Callable[[Sides], Iterator[Mutant]]


def try_pair(request: GateRequest, console: Console) -> list[Trial]:
    """Run the gate once for each fault of :func:`faults_of`, all on the same reference run, in float64.

    Raises:
        UserError: the port is not right to begin with, so that nothing can be said of what is done to it.
    """
    workers = workers_of(request)
    with scratch_job() as job:
        sides = described(request, job, console)
        weights, _ = randomize_constants(sides.weights, request.seed)
        write_pair(request, sides, weights, job)
        mutants = faults_of(sides)
        asked = replace(request, pair=replace(request.pair, map=sides.map))  # type: ignore[type-var]
        files.write_json(job / "job.json", replace(job_of(asked), mutants=[mutant.name for mutant in mutants]))
        run_workers([job], console, workers)
        reference, candidate = read_results(job)
        right = judge(reference, candidate)
        if culprit := first_at_fault(right, list(reference.tensors)):
            raise UserError(f"the port drifts as it is ({culprit.name}); toolkit parity says more")
        [(records, traced)] = trace.measure([job], console, workers)
        return verdicts_on(mutants, job, reference, candidate, records, traced, workers, console)


def faults_of(sides: Sides) -> list[Mutant]:
    """Faults of every kind that the port can have, each with what the gate is to name."""
    return [one for kind in _SITES for one in _spread(list(_SITES[kind](sides)))]


def _spread(found: Sequence[Mutant]) -> list[Mutant]:
    """The first and the last."""
    return list(dict.fromkeys((found[0], found[-1]))) if found else []


def _module(sides: Sides, path: str) -> str:
    """The reference's module of one of the port, or of the nearest around it that has one; else nothing."""
    of_port = {port: reference for reference, port in sides.map.modules.items()}
    while path and path not in of_port:
        path = path.rpartition(".")[0]
    return of_port.get(path, "")


def _module_after(sides: Sides, path: str) -> str:
    """The reference's module of the first of the port that runs after one and has one, which is where a fault of a
    layer without parameters shows; of one with layers inside, its own, as it is not known after which of them it is."""
    if any(one.name.startswith(f"{path}.") for one in sides.port.parameters):
        return _module(sides, path)
    of_port = {port: reference for reference, port in sides.map.modules.items()}
    order = [module.name for module in sides.port.modules]
    return next((of_port[name] for name in order[order.index(path) + 1 :] if name in of_port), "")


def _linears(sides: Sides, square: bool = False) -> Iterator[ParameterFacts]:
    matched = {match.port for match in sides.map.parameters}
    for one in sides.port.parameters:
        right = one.role == "linear" and one.name.endswith("weight") and one.order is not None and one.name in matched
        if right and one.kind == "Linear" and (not square or one.shape[0] == one.shape[1]):
            yield one


def _of_linears(kind: str, square: bool = False, biased: bool = False) -> Sites:
    def sites(sides: Sides) -> Iterator[Mutant]:
        biases = {one.module for one in sides.port.parameters if one.name.endswith("bias")}
        for one in _linears(sides, square):
            if not biased or one.module in biases:
                yield fault(kind, one.module, expected=_module(sides, one.module))

    return sites


def _detached(sides: Sides) -> Iterator[Mutant]:
    """What the gate must name is the way back through the module: what it gives is right."""
    for one in _linears(sides):
        yield fault("detached", one.module, operation=f"gradient:input:{_module(sides, one.module)}")


def _swapped(sides: Sides) -> Iterator[Mutant]:
    linears = list(_linears(sides))
    for index, one in enumerate(linears):
        for other in linears[index + 1 :]:
            if one.shape == other.shape and one.module.rpartition(".")[0] == other.module.rpartition(".")[0]:
                yield fault("swapped", one.module, other.module, expected=_module(sides, one.module))
                break


def _of_modules(kind: str, has: str) -> Sites:
    def sites(sides: Sides) -> Iterator[Mutant]:
        draws = {name.partition(":")[2] for name in sides.map.draws}
        for module in dict.fromkeys(sides.port.modules):
            if has in module.has and (has != "dropout" or module.name in draws):
                named = _module if has == "epsilon" else _module_after
                yield fault(kind, module.name, expected=named(sides, module.name))

    return sites


def _dropout(kind: str) -> Sites:
    """The reference's name of the draw is to be named."""

    def sites(sides: Sides) -> Iterator[Mutant]:
        dropouts = {module.name for module in sides.port.modules if "dropout" in module.has}
        for port, reference in sides.map.draws.items():
            if port.partition(":")[2] in dropouts:
                yield fault(kind, port.partition(":")[2], expected=reference)

    return sites


#: By kind, where it can be.
_SITES = {
    "epsilon": _of_modules("epsilon", "epsilon"),
    "no-bias": _of_linears("no-bias", biased=True),
    "swapped": _swapped,
    "transposed": _of_linears("transposed", square=True),
    "dropout-off": _dropout("dropout-off"),
    "dropout-rate": _dropout("dropout-rate"),
    "dropout-unscaled": _of_modules("dropout-unscaled", "dropout"),
    "activation": _of_modules("activation", "activation"),
    "detached": _detached,
    "gradient-doubled": _of_linears("gradient-doubled"),
    "slightly-off": _of_linears("slightly-off"),
    "in-float32": _of_modules("in-float32", "epsilon"),
    "frozen": _of_linears("frozen"),
    "copied": _of_linears("copied"),
}
