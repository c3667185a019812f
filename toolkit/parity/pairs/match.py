"""Match parameters, modules and random draws of a port with the reference's, from what both sides say of themselves.

Each parameter is matched by two independent signs: its name, and when its module ran. If both point to the same
counterpart, the match is certain; if they do not, it is a guess, and is reported as one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np

from toolkit.parity.job.pair import (
    RANDOM,
    Description,
    DrawFacts,
    ModuleFacts,
    PairMap,
    ParameterFacts,
    ParameterMatch,
)

#: Words that ports write in different ways -> one of them.
SAME = {
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "attn": "attention", "h": "layer",
    "layers": "layer", "block": "layer", "blocks": "layer", "ln": "norm", "layernorm": "norm", "wi": "intermediate",
    "wo": "output", "wte": "word", "wpe": "position", "fc1": "intermediate", "fc2": "output", "linear1": "intermediate",
    "linear2": "output", "emb": "embedding", "embeddings": "embedding", "embed": "embedding", "positions": "position",
    "cls": "head", "lm": "head", "classifier": "head", "gamma": "weight", "beta": "bias", "variance": "var",
}  # fmt: skip
#: Words without meaning for a match.
EMPTY = {"proj", "dense", "self", "model", "module", "net"}
#: Distance in the order of execution that counts as much as names without a common word.
FAR = 10.0
#: Cost of a pair that an assignment must not choose.
NEVER = 1e6


def propose(reference: Description, port: Description, given: Mapping[str, str] | None = None) -> PairMap:
    """Return the map of a pair.

    Args:
        given: parameters of the reference -> the port's, as the user says; they win.
    """
    parameters = match_parameters(reference.parameters, port.parameters, given or {})
    modules = match_modules(reference, port, parameters)
    matched = {match.port for match in parameters}
    held = [one for one in port.buffers if one.name not in matched]
    buffers = match_parameters(reference.buffers, held, {})
    counterparts = {name for match in buffers for name in (match.reference, match.port)}
    return PairMap(
        parameters=parameters,
        buffers=buffers,
        reference_state=[one.name for one in reference.buffers if one.is_state and one.name not in counterparts],
        port_state=[one.name for one in held if one.is_state and one.name not in counterparts],
        modules=modules,
        shapes={one.name: list(one.shape) for one in reference.modules if one.name in modules and one.shape},
        draws=match_draws(reference.draws, port.draws),
        drawn=[draw.name for draw in reference.draws if draw.kind in RANDOM],
    )


# -- parameters -----------------------------------------------------------------------------------------------------


def match_parameters(
    reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts], given: Mapping[str, str]
) -> list[ParameterMatch]:
    """Match each parameter of the reference with one of the same shape; leave out those without a counterpart."""
    ours = {one.name: one for one in port}
    theirs = {one.name: one for one in reference}
    found = {
        name: _match(theirs[name], ours[counterpart], True)
        for name, counterpart in given.items()
        if name in theirs and counterpart in ours
    }
    taken = {match.port for match in found.values()}
    for one in reference:  # the same name, shape and kind of layer
        other = ours.get(one.name)
        if one.name not in found and other and other.name not in taken and _fits(one, other):
            found[one.name] = _match(one, other, True)
            taken.add(other.name)
    left = [one for one in reference if one.name not in found]
    free = [one for one in port if one.name not in taken]
    for one, other, certain in _assigned(left, free):
        found[one.name] = _match(one, other, certain)
    return [found[one.name] for one in reference if one.name in found]


def _match(one: ParameterFacts, other: ParameterFacts, certain: bool) -> ParameterMatch:
    return ParameterMatch(one.name, other.name, one.transposed != other.transposed, certain)


def _fits(one: ParameterFacts, other: ParameterFacts) -> bool:
    same_role = one.role == other.role or "other" in (one.role, other.role)
    return one.shape == other.shape and same_role and leaf(one.name) == leaf(other.name)


def _group(one: ParameterFacts) -> tuple[int | str, ...]:
    """Return what parameters that may be counterparts have in common."""
    return (*one.shape, leaf(one.name))


def leaf(name: str) -> str:
    """Return the last word of a parameter's name, such as ``weight`` or ``bias``, in its common form."""
    last = re.split(r"[._]", name)[-1]
    return SAME.get(last, last)


def _assigned(
    left: Sequence[ParameterFacts], free: Sequence[ParameterFacts]
) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
    """Return the cheapest assignment among possible counterparts, and whether each pair of it is certain."""
    from scipy.optimize import linear_sum_assignment  # takes longer than all the rest, and a run's gate matches nothing

    possible = np.array([[_fits(one, other) for other in free] for one in left], bool).reshape(len(left), len(free))
    if not possible.any():
        return []
    names = np.array([[_distance(one.name, other.name) for other in free] for one in left])
    order = np.minimum(np.abs(np.subtract.outer(_places(left), _places(free))) / FAR, 1.0)
    names, cost = (np.where(possible, table, NEVER) for table in (names, names + order))
    rows, columns = linear_sum_assignment(cost)
    chosen = [(row, column) for row, column in zip(rows, columns, strict=True) if possible[row, column]]
    crossing = _crossing([(left[row], free[column]) for row, column in chosen])
    found = []
    for place, (row, column) in enumerate(chosen):
        alone = possible[row].sum() == 1 and possible[:, column].sum() == 1
        best = _is_best(names[row], column) and _is_best(names[:, column], row)
        found.append((left[row], free[column], bool(alone or (best and place not in crossing))))
    return found


def _is_best(costs: np.ndarray, place: int) -> bool:
    """Whether the cost at a place is below all others."""
    others = np.delete(costs, place)
    return not others.size or bool(costs[place] < others.min() - 1e-9)


def _crossing(pairs: Sequence[tuple[ParameterFacts, ParameterFacts]]) -> set[int]:
    """Return the places of pairs that ran in different orders on the two sides, among those of one shape."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for place, (one, _) in enumerate(pairs):
        groups[_group(one)].append(place)
    found = set()
    for members in groups.values():
        for place in members:
            here, there = (side.order for side in pairs[place])
            for other in members:
                a, b = (side.order for side in pairs[other])
                if None in (here, there, a, b):
                    continue
                if (here - a) * (there - b) < 0:  # type: ignore[operator]
                    found |= {place, other}
    return found


def _places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """Return when each parameter's module ran, among those of its shape and leaf; what never ran comes last."""
    places = np.full(len(parameters), float(len(parameters)))
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, one in enumerate(parameters):
        if one.order is not None:
            groups[_group(one)].append(index)
    for members in groups.values():
        for rank, index in enumerate(sorted(members, key=lambda index: parameters[index].order or 0)):
            places[index] = rank
    return places


def words(name: str) -> list[str]:
    """Return the words of a path in their common form, numbers included."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+", name)
    common = [SAME.get(word.lower(), word.lower()) for word in found]
    return [word for word in common if word not in EMPTY]


def _distance(one: str, other: str) -> float:
    """Return the distance of two names: 0 for the same words, 1 for none; other numbers count as much as all words."""
    a, b = words(one), words(other)
    numbers = [[word for word in side if word.isdigit()] for side in (a, b)]
    alike = SequenceMatcher(None, a, b, autojunk=False).ratio()
    shared = len({*a} & {*b}) / max(1, len({*a} | {*b}))
    return 1 - (alike + shared) / 2 + (numbers[0] != numbers[1])


# -- modules --------------------------------------------------------------------------------------------------------


def match_modules(reference: Description, port: Description, parameters: Sequence[ParameterMatch]) -> dict[str, str]:
    """Match the modules whose outputs are compared, the reference's path first: those that hold matched parameters
    themselves, and those around them that hold the same ones in all, if both sides nest equally many of these.
    What one side computes beside its layers, such as an activation after one, makes no counterpart of them."""
    of_port = {match.port: match.reference for match in parameters}
    names = ({one.name: one.name for one in reference.parameters},
             {one.name: of_port.get(one.name, f"port:{one.name}") for one in port.parameters})  # fmt: skip
    found: dict[str, str] = {}
    for themselves in (True, False):
        here, there = (
            _held(side.modules, held, themselves) for side, held in zip((reference, port), names, strict=True)
        )
        for held, modules in here.items():
            others = there.get(held, [])
            if len(others) == len(modules):
                found |= {
                    one.name: other.name
                    for one, other in zip(modules, others, strict=True)
                    if _same_elements(one.shape, other.shape)
                }
    order = [one.name for one in reference.modules]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _same_elements(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    """Whether two outputs may hold the same vectors: B x T x D, or B*T x D."""
    if not one or not other:
        return one == other == ()
    return one[-1] == other[-1] and math.prod(one) == math.prod(other)


def _held(
    modules: Iterable[ModuleFacts], names: Mapping[str, str], themselves: bool
) -> dict[frozenset[str], list[ModuleFacts]]:
    """Group modules, outermost first, by the parameters that they hold ``themselves`` or else in those within them."""
    owners = {name.rpartition(".")[0] for name in names}
    groups: dict[frozenset[str], list[ModuleFacts]] = defaultdict(list)
    for module in dict.fromkeys(modules):
        held = frozenset(names[name] for name in names if name.startswith(f"{module.name}."))
        if module.name and held and (module.name in owners) == themselves:
            groups[held].append(module)
    return {held: sorted(group, key=lambda one: one.name.count(".")) for held, group in groups.items()}


# -- draws ----------------------------------------------------------------------------------------------------------


def match_draws(reference: Sequence[DrawFacts], port: Sequence[DrawFacts]) -> dict[str, str]:
    """Match the port's draws with the reference's, kind by kind, in the order in which both were made.

    Only draws of equally many numbers match; among possible alignments, the names decide. What only one side draws
    is left out, and the gate then says so by name.
    """
    found: dict[str, str] = {}
    for kind in dict.fromkeys(draw.kind for draw in port):
        ours, theirs = ([one for one in side if one.kind == kind] for side in (port, reference))
        found |= {ours[there].name: theirs[here].name for here, there in _lined_up(theirs, ours)}
    return found


def _lined_up(theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts]) -> list[tuple[int, int]]:
    """Return the places of matching draws: the best alignment of two sequences (Needleman and Wunsch 1970)."""
    alike = np.array([[_alike(one, other) for other in ours] for one in theirs]).reshape(len(theirs), len(ours))
    best = np.zeros((len(theirs) + 1, len(ours) + 1))
    for here in range(len(theirs) - 1, -1, -1):
        for there in range(len(ours) - 1, -1, -1):
            both = alike[here, there] + best[here + 1, there + 1] if alike[here, there] else 0.0
            best[here, there] = max(both, best[here + 1, there], best[here, there + 1])
    found, here, there = [], 0, 0
    while here < len(theirs) and there < len(ours):
        if alike[here, there] and np.isclose(best[here, there], alike[here, there] + best[here + 1, there + 1]):
            found.append((here, there))
            here, there = here + 1, there + 1
        elif best[here + 1, there] >= best[here, there + 1]:
            here += 1
        else:
            there += 1
    return found


def _alike(one: DrawFacts, other: DrawFacts) -> float:
    """Return how well two draws match; 0 if they cannot."""
    if math.prod(one.shape) != math.prod(other.shape):
        return 0.0
    return 3.0 - _distance(one.name.partition(":")[2], other.name.partition(":")[2])
