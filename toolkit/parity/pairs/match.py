"""Which parameter, module and random draw of a port is which of the reference, from what both sides say of themselves.

Two things are asked of each parameter, and they know nothing of each other: what it is called, and when its module ran.
Where both name the same counterpart, the match is certain; where they do not, it is a guess, and is said to be one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np
from scipy.optimize import linear_sum_assignment

from toolkit.parity.job.pair import Description, DrawFacts, ModuleFacts, PairMap, ParameterFacts, ParameterMatch

#: Words that ports write in different ways -> one of them.
SAME = {
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "attn": "attention", "h": "layer",
    "layers": "layer", "block": "layer", "blocks": "layer", "ln": "norm", "layernorm": "norm", "wi": "intermediate",
    "wo": "output", "wte": "word", "wpe": "position", "fc1": "intermediate", "fc2": "output", "linear1": "intermediate",
    "linear2": "output", "emb": "embedding", "embeddings": "embedding", "embed": "embedding", "positions": "position",
    "cls": "head", "lm": "head", "classifier": "head", "gamma": "weight", "beta": "bias",
}  # fmt: skip
#: Words that say nothing.
EMPTY = {"proj", "dense", "self", "model", "module", "net"}
#: How much the place in the order of execution counts beside the name: of one in the other half, as much as half of
#: the words.
OF_ORDER = 1.0
#: What an assignment must not choose.
NEVER = 1e6


def propose(reference: Description, port: Description, given: Mapping[str, str] | None = None) -> PairMap:
    """The map of a pair.

    Args:
        given: parameters of the reference -> the port's, which the user has said; they win.
    """
    parameters = match_parameters(reference.parameters, port.parameters, given or {})
    return PairMap(
        parameters=parameters,
        modules=match_modules(reference, port, parameters),
        draws=match_draws(reference.draws, port.draws),
    )


# -- parameters -----------------------------------------------------------------------------------------------------


def match_parameters(
    reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts], given: Mapping[str, str]
) -> list[ParameterMatch]:
    """Each parameter of the reference and its counterpart, of the same shape; those without one are left out."""
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


def leaf(name: str) -> str:
    """``weight``, ``bias`` or whatever else a parameter is called in its module, by the common words."""
    last = name.rpartition(".")[2]
    return SAME.get(last, last)


def _assigned(
    left: Sequence[ParameterFacts], free: Sequence[ParameterFacts]
) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
    """The cheapest assignment among parameters that could be each other."""
    if not left or not free:
        return []
    places = (_places(left), _places(free))
    order = np.abs(np.subtract.outer(*places)) * OF_ORDER
    names = np.array([[_distance(one.name, other.name) for other in free] for one in left])
    possible = np.array([[_fits(one, other) for other in free] for one in left])
    if not possible.any():
        return []
    cost = np.where(possible, names + order, NEVER)
    rows, columns = linear_sum_assignment(cost)
    by_name, by_order = (_first_choices(np.where(possible, table, NEVER)) for table in (names, order))
    chosen = []
    for row, column in zip(rows, columns, strict=True):
        if possible[row, column]:
            alone = possible[row].sum() == 1 and possible[:, column].sum() == 1
            certain = bool(alone or (column in by_name[row] and by_order[row] == {column}))
            chosen.append((left[row], free[column], certain))
    return chosen


def _places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """When each parameter's module ran, from 0 to 1 among those of its shape and leaf; what never ran is last."""
    places = np.ones(len(parameters))
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, one in enumerate(parameters):
        groups[(*one.shape, leaf(one.name))].append(index)
    for members in groups.values():
        ranked = sorted(members, key=lambda index: (parameters[index].order is None, parameters[index].order))
        for rank, index in enumerate(ranked):
            places[index] = rank / max(1, len(ranked) - 1)
    return places


def _first_choices(cost: np.ndarray) -> list[set[int]]:
    """By row, the columns that cost least."""
    return [set(np.flatnonzero(np.isclose(row, row.min()))) for row in cost]


def words(name: str) -> list[str]:
    """The words of a path by the common ones, numbers among them."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+", name)
    common = [SAME.get(word.lower(), word.lower()) for word in found]
    return [word for word in common if word not in EMPTY]


def _distance(one: str, other: str) -> float:
    """How little two names have in common: 0 the same words, 1 none; other numbers count as much as all words."""
    a, b = words(one), words(other)
    numbers = [[word for word in side if word.isdigit()] for side in (a, b)]
    alike = SequenceMatcher(None, a, b, autojunk=False).ratio()
    shared = len({*a} & {*b}) / max(1, len({*a} | {*b}))
    return 1 - (alike + shared) / 2 + (numbers[0] != numbers[1])


# -- modules --------------------------------------------------------------------------------------------------------


def match_modules(reference: Description, port: Description, parameters: Sequence[ParameterMatch]) -> dict[str, str]:
    """The modules that hold the same parameters and give tensors of the same shape, the reference's path first.

    Of modules within each other that hold the same parameters, the outermost are matched with each other, then the
    next.
    """
    of_port = {match.port: match.reference for match in parameters}
    held_there = _held(port.modules, {one.name: of_port.get(one.name, f"port:{one.name}") for one in port.parameters})
    held_here = _held(reference.modules, {one.name: one.name for one in reference.parameters})
    found: dict[str, str] = {}
    for held, modules in held_here.items():
        for one, other in zip(modules, held_there.get(held, []), strict=False):
            if one.shape == other.shape and one.shape is not None:
                found[one.name] = other.name
    order = [one.name for one in reference.modules]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _held(modules: Iterable[ModuleFacts], names: Mapping[str, str]) -> dict[frozenset[str], list[ModuleFacts]]:
    """The parameters that modules hold, themselves or in those within them -> the modules, the outermost first."""
    groups: dict[frozenset[str], list[ModuleFacts]] = defaultdict(list)
    for module in modules:
        held = frozenset(names[name] for name in names if name.startswith(f"{module.name}."))
        if module.name and held:
            groups[held].append(module)
    return {held: sorted(group, key=lambda one: one.name.count(".")) for held, group in groups.items()}


# -- draws ----------------------------------------------------------------------------------------------------------


def match_draws(reference: Sequence[DrawFacts], port: Sequence[DrawFacts]) -> dict[str, str]:
    """The port's draws and the reference's: the longest sequence that both have in common, kind by kind.

    What is drawn at the same place in another shape, or not at all, is left out, and the gate then says so by name.
    """
    found: dict[str, str] = {}
    for kind in dict.fromkeys(draw.kind for draw in port):
        ours, theirs = ([one for one in side if one.kind == kind] for side in (port, reference))
        common = SequenceMatcher(None, [_key(one) for one in theirs], [_key(one) for one in ours], autojunk=False)
        for start, other, size in common.get_matching_blocks():
            for offset in range(size):
                found[ours[other + offset].name] = theirs[start + offset].name
    return found


def _key(draw: DrawFacts) -> tuple:
    return (*draw.shape,)
