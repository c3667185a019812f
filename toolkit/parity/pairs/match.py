"""Match parameters, modules and random draws of a port with the reference's, from what both sides say of themselves.

Each parameter is matched by two independent signs: its name, and when its module ran. If both point to the same
counterpart, the match is certain; if they do not, it is a guess, and is reported as one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from toolkit.parity.job.pair import (
    RANDOM,
    Description,
    DrawFacts,
    ModuleFacts,
    OutputOrder,
    PairMap,
    ParameterFacts,
    ParameterMatch,
)
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.pairs.axes import axes_between, axes_of
from toolkit.parity.pairs.pieces import as_told, fused, reshaped
from toolkit.parity.pairs.words import distance, is_spelled_alike, leaf

#: Distance in the order of execution that counts as much as names without a common word.
FAR = 10.0
#: Cost of each certain pair that ran before one parameter and after its counterpart; at most 1 in all.
CROSSING_COST = 0.25
#: Cost of a pair such as `weight` and `gamma`: a port may call a norm's weight so, but also a scale of a block.
OTHER_SPELLING = 1.0
#: Cost of a pair that an assignment must not choose.
NEVER = 1e6


def propose(
    reference: Description,
    port: Description,
    given: Mapping[str, Sequence[str]] | None = None,
    layouts: Mapping[str, str | Sequence[int]] | None = None,
) -> PairMap:
    """Return the map of a pair.

    Args:
        given: parameters of the reference -> the port's, as the user says (:func:`.pieces.as_told`); they win.
        layouts: pattern of modules and draws -> axes, as the user says (:func:`.axes.axes_of`).

    Raises:
        ValueError: these do not fit.
    """
    parameters = match_parameters(reference.parameters, port.parameters, given or {})
    modules = match_modules(reference, port, parameters)
    draws = match_draws(reference.draws, port.draws, modules)
    modules = _with_the_same_draws(modules, draws)
    matched_names = {match.port for match in parameters}
    held = [one for one in port.buffers if one.name not in matched_names]
    matched_names = {match.reference for match in parameters}
    tables = [one for one in reference.buffers if one.name not in matched_names]
    buffers = match_parameters(tables, held, {})
    counterparts = {name for match in buffers for name in (match.reference, match.port)}
    drawn_names = {one.name for one in (*tables, *held) if one.is_drawn}
    drawn_parameters = drawn_names & {one.name for one in reference.parameters}  # which a port can only load
    return PairMap(
        parameters=parameters,
        orders=_orders_of(reference, modules, parameters),
        buffers=buffers,
        reference_state=[one.name for one in tables if one.is_state and one.name not in counterparts],
        port_state=[one.name for one in held if one.is_state and one.name not in counterparts],
        drawn_buffers=[
            match.reference
            for match in buffers
            if {match.reference, match.port} <= drawn_names or match.reference in drawn_parameters
        ],
        modules=modules,
        axes=axes_of(reference, port, modules, draws, layouts or {}),
        shapes={one.name: list(one.shape) for one in reference.modules if one.name in modules and one.shape},
        draws=draws,
        drawn=[draw.name for draw in reference.draws if draw.kind in RANDOM],
    )


# -- parameters -----------------------------------------------------------------------------------------------------


def match_parameters(
    reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts], given: Mapping[str, Sequence[str]]
) -> list[ParameterMatch]:
    """Match each parameter of the reference with one of the same shape; leave out those without a counterpart."""
    ours, theirs = ({one.name: one for one in side} for side in (port, reference))
    matches = [match for name, told in given.items() for match in as_told(theirs[name], told, ours)]
    _check_rows(matches, ours)
    left, free = _unmatched(reference, port, matches)
    here = {one.name: one for one in free}  # the same name, shape and kind of layer
    matches += [_match(one, here[one.name], True) for one in left if one.name in here and _fits(one, here[one.name])]
    matches += fused(*_unmatched(reference, port, matches))
    left, free = _unmatched(reference, port, matches)
    matches += [_match(*chosen) for chosen in _assigned(left, free)]
    matches += reshaped(*_unmatched(reference, port, matches))
    place = {one.name: number for number, one in enumerate(reference)}
    return sorted(matches, key=lambda match: (place[match.reference], match.rows or (0, 0)))


def _check_rows(matches: Sequence[ParameterMatch], port: Mapping[str, ParameterFacts]) -> None:
    """Check that the rows of a map take each row of the port's parameters once.

    Raises:
        ValueError: a row is in no parameter of the reference, or in two.
    """
    rows: dict[str, list[Sequence[int]]] = defaultdict(list)
    for match in matches:
        rows[match.port].append(match.port_rows or (0, (port[match.port].shape or [0])[0]))
    for name, row_ranges in rows.items():
        numbers = [number for first, end in row_ranges for number in range(first, end)]
        count = (port[name].shape or [0])[0]
        if sorted(numbers) != list(range(count)):
            parts = ", ".join(f"{first}:{end}" for first, end in row_ranges)
            raise ValueError(
                f"{name} of the port has the rows 0:{count}, of which the map takes {parts}; name each once"
            )


def _unmatched(
    reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts], matches: Sequence[ParameterMatch]
) -> tuple[list[ParameterFacts], list[ParameterFacts]]:
    theirs, ours = {match.reference for match in matches}, {match.port for match in matches}
    return [one for one in reference if one.name not in theirs], [one for one in port if one.name not in ours]


def _match(one: ParameterFacts, other: ParameterFacts, certain: bool) -> ParameterMatch:
    return ParameterMatch(one.name, other.name, one.transposed != other.transposed, certain)


def _fits(one: ParameterFacts, other: ParameterFacts) -> bool:
    same_role = one.role == other.role or "other" in (one.role, other.role)
    return one.shape == other.shape and same_role and leaf(one.name) == leaf(other.name)


def _group(one: ParameterFacts) -> tuple[int | str, ...]:
    """Return what parameters that may be counterparts have in common."""
    return (*one.shape, leaf(one.name))


def _assigned(
    left: Sequence[ParameterFacts], free: Sequence[ParameterFacts]
) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
    """Return the cheapest assignment among possible counterparts, and whether each pair of it is certain."""
    from scipy.optimize import linear_sum_assignment  # takes longer than all the rest, and a run's gate matches nothing

    possible = np.array([[_fits(one, other) for other in free] for one in left], bool).reshape(len(left), len(free))
    if not possible.any():
        return []
    names = np.array([[_name_cost(one.name, other.name) for other in free] for one in left])
    # Two encoders may not run in the order of their construction: the order that fits the names better counts.
    by_execution, by_branch = (
        np.where(possible, names + np.minimum(np.abs(np.subtract.outer(places(left), places(free))) / FAR, 1.0), NEVER)
        for places in (_execution_places, _branch_places)
    )
    ran_in_order = _total_cost(by_execution) <= _total_cost(by_branch) + 1e-9
    names = np.where(possible, names, NEVER)

    def assign(cost: np.ndarray) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
        rows, columns = linear_sum_assignment(cost)
        chosen_places = [(row, column) for row, column in zip(rows, columns, strict=True) if possible[row, column]]
        crossing = _crossing([(left[row], free[column]) for row, column in chosen_places])
        pairs = []
        for place, (row, column) in enumerate(chosen_places):
            alone = possible[row].sum() == 1 and possible[:, column].sum() == 1
            best = _is_best(names[row], column) and _is_best(names[:, column], row)
            pairs.append((left[row], free[column], bool(alone or (best and place not in crossing))))
        return pairs

    if not ran_in_order:
        return assign(by_branch)
    certain = [(one, other) for one, other, is_certain in assign(by_execution) if is_certain]
    return assign(by_execution + np.minimum(CROSSING_COST * _count_crossed(left, free, certain), 1.0))


def _total_cost(cost: np.ndarray) -> float:
    """Return the cost of the cheapest assignment."""
    from scipy.optimize import linear_sum_assignment

    return float(cost[linear_sum_assignment(cost)].sum())


def _count_crossed(
    reference: Sequence[ParameterFacts],
    port: Sequence[ParameterFacts],
    certain: Sequence[tuple[ParameterFacts, ParameterFacts]],
) -> np.ndarray:
    """Return how many certain pairs ran before a parameter and after its counterpart, or the other way around.

    Returns:
        The counts, (parameters of the reference, parameters of the port).
    """
    sides = [(reference, [one for one, _ in certain]), (port, [other for _, other in certain])]
    is_after, is_before = [], []
    for parameters, anchors in sides:
        orders, of_anchors = (
            np.array([np.nan if one.order is None else one.order for one in some], float)
            for some in (parameters, anchors)
        )
        later = np.sign(np.subtract.outer(orders, of_anchors))
        is_after.append((later > 0).astype(float))
        is_before.append((later < 0).astype(float))
    return is_after[0] @ is_before[1].T + is_before[0] @ is_after[1].T


def _name_cost(reference_name: str, port_name: str) -> float:
    return distance(reference_name, port_name) + OTHER_SPELLING * (not is_spelled_alike(reference_name, port_name))


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


def _execution_places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """Return when each parameter's module ran, among those of its shape and leaf; what never ran comes last."""
    return _ranks(parameters, [0] * len(parameters))


def _branch_places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """Return these ranks for parts of the model that run in the order of their construction."""
    paths = [one.name.split(".") for one in parameters]
    depth = next((depth for depth, words in enumerate(zip(*paths, strict=False)) if len({*words}) > 1), 0)
    branches = list(dict.fromkeys(path[depth] for path in paths))
    return _ranks(parameters, [branches.index(path[depth]) for path in paths])


def _ranks(parameters: Sequence[ParameterFacts], branches: Sequence[int]) -> np.ndarray:
    """Return the rank of each parameter by branch and execution time, among parameters of its shape and leaf."""
    places = np.full(len(parameters), float(len(parameters)))
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, one in enumerate(parameters):
        if one.order is not None:
            groups[_group(one)].append(index)
    for members in groups.values():
        for rank, index in enumerate(
            sorted(members, key=lambda index: (branches[index], parameters[index].order or 0))
        ):
            places[index] = rank
    return places


# -- modules --------------------------------------------------------------------------------------------------------


def match_modules(reference: Description, port: Description, parameters: Sequence[ParameterMatch]) -> dict[str, str]:
    """Match the modules whose outputs are compared, the reference's path first: those that hold matched parameters
    themselves, and those around them that hold the same ones in all, if both sides nest equally many of these.
    What one side computes beside its layers, such as an activation after one, makes no counterpart of them."""
    of_port: dict[str, set[str]] = defaultdict(set)
    for match in parameters:
        of_port[match.port].add(match.reference)
    # Paddle holds a batch norm's statistics as parameters; a frozen parameter is one of these, too, but is matched.
    state = {one.name for one in port.buffers}
    names = (
        {name: {one.name} for one in reference.parameters for name in (one.name, *one.tied)},
        {
            name: of_port.get(one.name, {f"port:{one.name}"})
            for one in port.parameters
            if one.name in of_port or one.name not in state
            for name in (one.name, *one.tied)
        },
    )
    found: dict[str, str] = {}
    for themselves in (True, False):
        here, there = (
            _held(side.modules, held, themselves) for side, held in zip((reference, port), names, strict=True)
        )
        for held, modules in here.items():
            others = there.get(held, [])
            if themselves:  # a tied weight is held by an embedding and by an output layer
                found |= _with_the_same_elements(modules, others)
                modules, others = ([one for one in side if one.name not in taken] for side, taken in
                                   ((modules, found.keys()), (others, set(found.values()))))  # fmt: skip
            if len(others) == len(modules):
                found |= {
                    one.name: other.name
                    for one, other in zip(modules, others, strict=True)
                    # The same layer with an output of another shape is a finding, which comes before what follows.
                    if _same_elements(one.shape, other.shape) or (themselves and _differ(one.shape, other.shape))
                }
    order = [one.name for one in reference.modules]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _with_the_same_elements(modules: Sequence[ModuleFacts], others: Sequence[ModuleFacts]) -> dict[str, str]:
    """Match modules whose outputs have as many elements, in order."""
    left = list(others)
    found = {}
    for one in modules:
        if other := next((other for other in left if _same_elements(one.shape, other.shape)), None):
            left.remove(other)
            found[one.name] = other.name
    return found


def _with_the_same_draws(modules: Mapping[str, str], draws: Mapping[str, str]) -> dict[str, str]:
    """Leave out modules that hold the same parameters and draw differently: attention that drops its output itself is
    not one whose output the layer around drops."""

    def draw_alike(module: str, other: str) -> bool:
        pairs = ((TensorName.parse(theirs).module, TensorName.parse(ours).module) for ours, theirs in draws.items())
        return all(_is_in(here, module) == _is_in(there, other) for here, there in pairs)

    return {one: other for one, other in modules.items() if draw_alike(one, other)}


def _orders_of(
    reference: Description, modules: Mapping[str, str], parameters: Sequence[ParameterMatch]
) -> dict[str, OutputOrder]:
    """Return the order of each output's features in the port, by module, where a map permutes a weight's rows."""
    facts = {one.name: one for one in reference.parameters}
    pieces: dict[str, list[ParameterMatch]] = defaultdict(list)
    for match in parameters:
        pieces[match.reference].append(match)
    orders = {}
    for name, matches in pieces.items():
        one, module, [port, *others] = facts[name], facts[name].module, {match.port: None for match in matches}
        is_of_module = not others and port.rpartition(".")[0] == modules.get(module)
        rows = [match.port_rows for match in matches]
        if not is_of_module or one.role == "embedding" or len(rows) == 1 or None in rows:
            continue
        places = [place for first, end in filter(None, rows) for place in range(first, end)]
        orders[module] = OutputOrder(1 if one.role == "conv" else -1, places)
    return orders


def _is_in(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _same_elements(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    """Whether two outputs may hold the same vectors: B x T x D, B*T x D, or in another order of axes."""
    if not one or not other:
        return one == other == ()
    return (one[-1] == other[-1] and math.prod(one) == math.prod(other)) or axes_between(one, other) is not None


def _differ(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    """Whether no broadcasting makes two outputs one: positions may be looked up for a batch, or once for all of it."""
    if not one or not other:
        return False
    return any(here != there and 1 not in (here, there) for here, there in zip(one[::-1], other[::-1], strict=False))


def _held(
    modules: Iterable[ModuleFacts], names: Mapping[str, set[str]], themselves: bool
) -> dict[frozenset[str], list[ModuleFacts]]:
    """Group modules, outermost first, by the parameters that they hold ``themselves`` or else in those within them."""
    owners = {name.rpartition(".")[0] for name in names}
    groups: dict[frozenset[str], list[ModuleFacts]] = defaultdict(list)
    for module in dict.fromkeys(modules):
        held = frozenset().union(*(names[name] for name in names if name.startswith(f"{module.name}.")))
        if module.name and held and (module.name in owners) == themselves:
            groups[held].append(module)
    return {held: sorted(group, key=lambda one: one.name.count(".")) for held, group in groups.items()}


# -- draws ----------------------------------------------------------------------------------------------------------


def match_draws(
    reference: Sequence[DrawFacts], port: Sequence[DrawFacts], modules: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Match the port's draws with the reference's, kind by kind, in the order in which both were made.

    Only draws of equally many numbers match; among possible alignments, the names decide. What only one side draws
    is left out, and the gate then says so by name. Two encoders may run in another order: if no fewer draws match
    inside of counterparts alone, in any order of these, those matches count.

    Args:
        modules: path of a reference's module -> path of its counterpart.
    """
    matches: dict[str, str] = {}
    for kind in dict.fromkeys(draw.kind for draw in port):
        ours, theirs = ([one for one in side if one.kind == kind] for side in (port, reference))
        matches |= _in_counterparts(theirs, ours, modules or {}) or _pair_names(theirs, ours, _lined_up(theirs, ours))
    return matches


def _pair_names(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], places: Sequence[tuple[int, int]]
) -> dict[str, str]:
    return {ours[column].name: theirs[row].name for row, column in places}


def _in_counterparts(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], modules: Mapping[str, str]
) -> dict[str, str]:
    """Return the matches of draws inside of counterparts, in any order of these; {} if fewer than in one order."""
    counterparts = {port: reference for reference, port in modules.items()}
    their_modules = [_innermost(one, modules) for one in theirs]
    our_modules = [counterparts.get(_innermost(one, counterparts), "") for one in ours]
    is_possible = np.array(
        [[_is_in(a, b) or _is_in(b, a) or "" in (a, b) for b in our_modules] for a in their_modules], bool
    ).reshape(len(theirs), len(ours))
    matches: dict[str, str] = {}
    while aligned_places := _lined_up(theirs, ours, is_possible):
        matches |= _pair_names(theirs, ours, aligned_places)
        for row, column in aligned_places:
            is_possible[row], is_possible[:, column] = False, False
    return matches if len(matches) >= len(_lined_up(theirs, ours)) else {}


def _innermost(draw: DrawFacts, modules: Iterable[str]) -> str:
    """Return the path of the innermost of these modules that makes a draw; "" if none of them makes it."""
    module = TensorName.parse(draw.name).module
    return max((one for one in modules if _is_in(module, one)), key=len, default="")


def _lined_up(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], is_possible: np.ndarray | float = 1.0
) -> list[tuple[int, int]]:
    """Return the places of matching draws: the best alignment of two sequences (Needleman and Wunsch 1970).

    Args:
        is_possible: whether two draws may match, (reference's draws, port's draws); any may by default.
    """
    alike = np.array([[_alike(one, other) for other in ours] for one in theirs]).reshape(len(theirs), len(ours))
    alike = alike * is_possible
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
    return 3.0 - distance(one.name.partition(":")[2], other.name.partition(":")[2])
