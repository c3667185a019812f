"""Match parameters, modules and random draws of a port with the reference, from the descriptions of both sides.

Each parameter is matched by two independent signs: its name, and the time when its module ran. If both indicate the
same counterpart, the match is certain. Otherwise the match is a guess, and the report marks it as a guess.
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
from toolkit.parity.pairs.pieces import match_by_map, match_fused, match_reshaped
from toolkit.parity.pairs.words import is_spelled_alike, last_word, name_distance

#: Distance in the order of execution that counts as much as names without a common word.
FAR_DISTANCE = 10.0
#: Cost of each certain pair that ran before one parameter and after its counterpart; at most 1 in all.
CROSSING_COST = 0.25
#: Cost of a pair such as `weight` and `gamma`: a port may call a norm's weight so, but also a scale of a block.
OTHER_SPELLING_COST = 1.0
#: Cost of a pair that an assignment must not choose.
FORBIDDEN_COST = 1e6


def propose_map(
    reference_description: Description,
    port_description: Description,
    user_names: Mapping[str, Sequence[str]] | None = None,
    layouts: Mapping[str, str | Sequence[int]] | None = None,
) -> PairMap:
    """Return the map of a pair.

    Args:
        reference_description: description of the reference.
        port_description: description of the port.
        user_names: name of a parameter of the reference -> names of the port, from the user's map
            (:func:`.pieces.match_by_map`). They take precedence.
        layouts: pattern of module and draw names -> axes, from the user's map (:func:`.axes.axes_of`).

    Raises:
        ValueError: the user's names do not fit.
    """
    parameters = match_parameters(reference_description.parameters, port_description.parameters, user_names or {})
    modules = match_modules(reference_description, port_description, parameters)
    draws = match_draws(reference_description.draws, port_description.draws, modules)
    modules = _with_the_same_draws(modules, draws)
    matched_names = {match.port for match in parameters}
    port_buffers = [one for one in port_description.buffers if one.name not in matched_names]
    matched_names = {match.reference for match in parameters}
    tables = [one for one in reference_description.buffers if one.name not in matched_names]
    buffers = match_parameters(tables, port_buffers, {})
    counterparts = {name for match in buffers for name in (match.reference, match.port)}
    drawn_names = {one.name for one in (*tables, *port_buffers) if one.is_drawn}
    drawn_parameters = drawn_names & {
        one.name for one in reference_description.parameters
    }  # which a port can only load
    return PairMap(
        parameters=parameters,
        orders=_orders_of(reference_description, modules, parameters),
        buffers=buffers,
        reference_state=[one.name for one in tables if one.is_state and one.name not in counterparts],
        port_state=[one.name for one in port_buffers if one.is_state and one.name not in counterparts],
        drawn_buffers=[
            match.reference
            for match in buffers
            if {match.reference, match.port} <= drawn_names or match.reference in drawn_parameters
        ],
        modules=modules,
        axes=axes_of(reference_description, port_description, modules, draws, layouts or {}),
        shapes={
            one.name: list(one.shape) for one in reference_description.modules if one.name in modules and one.shape
        },
        draws=draws,
        drawn=[draw.name for draw in reference_description.draws if draw.kind in RANDOM],
    )


# -- parameters -----------------------------------------------------------------------------------------------------


def match_parameters(
    reference_parameters: Sequence[ParameterFacts],
    port_parameters: Sequence[ParameterFacts],
    user_names: Mapping[str, Sequence[str]],
) -> list[ParameterMatch]:
    """Match each parameter of the reference with one of the same shape; leave out those without a counterpart.

    Args:
        reference_parameters: parameters of the reference.
        port_parameters: parameters of the port.
        user_names: names in the port, by the reference's name, from the user's map.
    """
    ours, theirs = ({one.name: one for one in side} for side in (port_parameters, reference_parameters))
    matches = [
        match for name, port_names in user_names.items() for match in match_by_map(theirs[name], port_names, ours)
    ]
    _check_rows(matches, ours)
    remaining, free = _unmatched_parameters(reference_parameters, port_parameters, matches)
    free_by_name = {one.name: one for one in free}  # the same name, shape and kind of layer
    matches += [
        _make_match(one, free_by_name[one.name], certain=True)
        for one in remaining
        if one.name in free_by_name and _may_match(one, free_by_name[one.name])
    ]
    matches += match_fused(*_unmatched_parameters(reference_parameters, port_parameters, matches))
    remaining, free = _unmatched_parameters(reference_parameters, port_parameters, matches)
    matches += [
        _make_match(one, counterpart, certain=certain)
        for one, counterpart, certain in _assign_counterparts(remaining, free)
    ]
    matches += match_reshaped(*_unmatched_parameters(reference_parameters, port_parameters, matches))
    place = {one.name: number for number, one in enumerate(reference_parameters)}
    return sorted(matches, key=lambda match: (place[match.reference], match.rows or (0, 0)))


def _check_rows(matches: Sequence[ParameterMatch], port_parameters: Mapping[str, ParameterFacts]) -> None:
    """Check that the map's slices cover each row of the port's parameters exactly once.

    Args:
        matches: matches of slices from the user's map.
        port_parameters: parameters of the port, by name.

    Raises:
        ValueError: a row is in no parameter of the reference, or in two.
    """
    rows: dict[str, list[Sequence[int]]] = defaultdict(list)
    for match in matches:
        rows[match.port].append(match.port_rows or (0, (port_parameters[match.port].shape or [0])[0]))
    for name, row_ranges in rows.items():
        numbers = [number for first, end in row_ranges for number in range(first, end)]
        count = (port_parameters[name].shape or [0])[0]
        if sorted(numbers) != list(range(count)):
            parts = ", ".join(f"{first}:{end}" for first, end in row_ranges)
            raise ValueError(
                f"{name} of the port has the rows 0:{count}, of which the map takes {parts}; name each once"
            )


def _unmatched_parameters(
    reference_parameters: Sequence[ParameterFacts],
    port_parameters: Sequence[ParameterFacts],
    matches: Sequence[ParameterMatch],
) -> tuple[list[ParameterFacts], list[ParameterFacts]]:
    """Return the parameters of each side that occur in no match.

    Args:
        reference_parameters: parameters of the reference.
        port_parameters: parameters of the port.
        matches: matches that were found.
    """
    theirs, ours = {match.reference for match in matches}, {match.port for match in matches}
    return [one for one in reference_parameters if one.name not in theirs], [
        one for one in port_parameters if one.name not in ours
    ]


def _make_match(theirs: ParameterFacts, ours: ParameterFacts, *, certain: bool) -> ParameterMatch:
    """Return the match of a parameter of the reference with a parameter of the port.

    Args:
        theirs: parameter of the reference.
        ours: parameter of the port.
        certain: whether the match is certain.
    """
    return ParameterMatch(theirs.name, ours.name, theirs.transposed != ours.transposed, certain)


def _may_match(theirs: ParameterFacts, ours: ParameterFacts) -> bool:
    """Return whether two parameters have the same shape, role and last part of the name.

    Args:
        theirs: parameter of the reference.
        ours: parameter of the port.
    """
    same_role = theirs.role == ours.role or "other" in (theirs.role, ours.role)
    return theirs.shape == ours.shape and same_role and last_word(theirs.name) == last_word(ours.name)


def _group_key(parameter: ParameterFacts) -> tuple[int | str, ...]:
    """Return the common key of parameters that may be counterparts: their shape and the last word of their name."""
    return (*parameter.shape, last_word(parameter.name))


def _assign_counterparts(
    remaining: Sequence[ParameterFacts], free: Sequence[ParameterFacts]
) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
    """Return the cheapest assignment among possible counterparts, and whether each pair of it is certain.

    Args:
        remaining: parameters of the reference without a match.
        free: parameters of the port without a match.
    """
    from scipy.optimize import linear_sum_assignment  # takes longer than all the rest, and a run's gate matches nothing

    possible = np.array([[_may_match(one, other) for other in free] for one in remaining], bool).reshape(
        len(remaining), len(free)
    )
    if not possible.any():
        return []
    names = np.array([[_name_cost(one.name, other.name) for other in free] for one in remaining])
    # Two encoders may not run in the order of their construction: the order that fits the names better counts.
    by_execution, by_branch = (
        np.where(
            possible,
            names + np.minimum(np.abs(np.subtract.outer(places(remaining), places(free))) / FAR_DISTANCE, 1.0),
            FORBIDDEN_COST,
        )
        for places in (_execution_places, _branch_places)
    )
    ran_in_order = _total_cost(by_execution) <= _total_cost(by_branch) + 1e-9
    names = np.where(possible, names, FORBIDDEN_COST)

    def assign(cost: np.ndarray) -> list[tuple[ParameterFacts, ParameterFacts, bool]]:
        rows, columns = linear_sum_assignment(cost)
        assigned_places = [(row, column) for row, column in zip(rows, columns, strict=True) if possible[row, column]]
        crossing = _crossing_places([(remaining[row], free[column]) for row, column in assigned_places])
        pairs = []
        for place, (row, column) in enumerate(assigned_places):
            alone = possible[row].sum() == 1 and possible[:, column].sum() == 1
            best = _is_best(names[row], column) and _is_best(names[:, column], row)
            pairs.append((remaining[row], free[column], bool(alone or (best and place not in crossing))))
        return pairs

    if not ran_in_order:
        return assign(by_branch)
    certain = [(one, other) for one, other, is_certain in assign(by_execution) if is_certain]
    return assign(by_execution + np.minimum(CROSSING_COST * _count_crossed(remaining, free, certain), 1.0))


def _total_cost(cost: np.ndarray) -> float:
    """Return the cost of the cheapest assignment."""
    from scipy.optimize import linear_sum_assignment

    return float(cost[linear_sum_assignment(cost)].sum())


def _count_crossed(
    reference_parameters: Sequence[ParameterFacts],
    port_parameters: Sequence[ParameterFacts],
    certain: Sequence[tuple[ParameterFacts, ParameterFacts]],
) -> np.ndarray:
    """Return how many certain pairs ran before a parameter and after its counterpart, or the other way around.

    Args:
        reference_parameters: parameters of the reference.
        port_parameters: parameters of the port.
        certain: pairs of a parameter of the reference and its certain counterpart in the port.

    Returns:
        The counts, (parameters of the reference, parameters of the port).
    """
    sides = [(reference_parameters, [one for one, _ in certain]), (port_parameters, [other for _, other in certain])]
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
    """Return the cost of matching two names: their distance, and an extra cost if they are spelled differently.

    Args:
        reference_name: name in the reference.
        port_name: name in the port.
    """
    return name_distance(reference_name, port_name) + OTHER_SPELLING_COST * (
        not is_spelled_alike(reference_name, port_name)
    )


def _is_best(costs: np.ndarray, place: int) -> bool:
    """Return whether the cost at a place is below all other costs."""
    others = np.delete(costs, place)
    return not others.size or bool(costs[place] < others.min() - 1e-9)


def _crossing_places(parameter_pairs: Sequence[tuple[ParameterFacts, ParameterFacts]]) -> set[int]:
    """Return the indices of pairs that ran in another order on one side than on the other side.

    A pair is only compared with pairs of the same shape.

    Args:
        parameter_pairs: pairs of a parameter of the reference and a parameter of the port.
    """
    groups: dict[tuple, list[int]] = defaultdict(list)
    for place, (theirs, _) in enumerate(parameter_pairs):
        groups[_group_key(theirs)].append(place)
    crossing_places = set()
    for members in groups.values():
        for place in members:
            their_order, our_order = (side.order for side in parameter_pairs[place])
            for other in members:
                a, b = (side.order for side in parameter_pairs[other])
                if None in (their_order, our_order, a, b):
                    continue
                if (their_order - a) * (our_order - b) < 0:  # type: ignore[operator]
                    crossing_places |= {place, other}
    return crossing_places


def _execution_places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """Return the rank of each parameter by the time when its module ran, among parameters with its shape and last word.

    A parameter whose module never ran comes last.
    """
    return _rank_parameters(parameters, [0] * len(parameters))


def _branch_places(parameters: Sequence[ParameterFacts]) -> np.ndarray:
    """Return these ranks for parts of the model that run in the order of their construction."""
    paths = [one.name.split(".") for one in parameters]
    depth = next((depth for depth, words in enumerate(zip(*paths, strict=False)) if len({*words}) > 1), 0)
    branches = list(dict.fromkeys(path[depth] for path in paths))
    return _rank_parameters(parameters, [branches.index(path[depth]) for path in paths])


def _rank_parameters(parameters: Sequence[ParameterFacts], branches: Sequence[int]) -> np.ndarray:
    """Return the rank of each parameter by branch and execution time, among parameters with its shape and last word."""
    places = np.full(len(parameters), float(len(parameters)))
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, one in enumerate(parameters):
        if one.order is not None:
            groups[_group_key(one)].append(index)
    for members in groups.values():
        for rank, index in enumerate(
            sorted(members, key=lambda index: (branches[index], parameters[index].order or 0))
        ):
            places[index] = rank
    return places


# -- modules --------------------------------------------------------------------------------------------------------


def match_modules(
    reference_description: Description, port_description: Description, parameter_matches: Sequence[ParameterMatch]
) -> dict[str, str]:
    """Match the modules whose outputs are compared.

    Modules match if they hold matched parameters themselves. The modules around them match if they contain the same
    parameters, and if both sides nest the same number of such modules. A module without parameters, such as an
    activation, is not matched.

    Returns:
        Path of the reference's module -> path of the port's module.
    """
    of_port: dict[str, set[str]] = defaultdict(set)
    for match in parameter_matches:
        of_port[match.port].add(match.reference)
    # Paddle holds a batch norm's statistics as parameters; a frozen parameter is one of these, too, but is matched.
    state = {one.name for one in port_description.buffers}
    names = (
        {name: {one.name} for one in reference_description.parameters for name in (one.name, *one.tied)},
        {
            name: of_port.get(one.name, {f"port:{one.name}"})
            for one in port_description.parameters
            if one.name in of_port or one.name not in state
            for name in (one.name, *one.tied)
        },
    )
    matches: dict[str, str] = {}
    for themselves in (True, False):
        their_groups, our_groups = (
            _group_by_parameters(side.modules, parameter_names, themselves=themselves)
            for side, parameter_names in zip((reference_description, port_description), names, strict=True)
        )
        for parameter_names, modules in their_groups.items():
            port_modules = our_groups.get(parameter_names, [])
            if themselves:  # an embedding and an output layer both hold a tied weight
                matches |= _with_the_same_elements(modules, port_modules)
                modules = [module for module in modules if module.name not in matches]
                port_modules = [module for module in port_modules if module.name not in matches.values()]
            if len(port_modules) == len(modules):
                matches |= {
                    one.name: other.name
                    for one, other in zip(modules, port_modules, strict=True)
                    # The same layer with an output of another shape is a finding, which comes before what follows.
                    if _have_same_elements(one.shape, other.shape)
                    or (themselves and _shapes_conflict(one.shape, other.shape))
                }
    order = [one.name for one in reference_description.modules]
    return {name: matches[name] for name in sorted(matches, key=order.index)}


def _with_the_same_elements(modules: Sequence[ModuleFacts], port_modules: Sequence[ModuleFacts]) -> dict[str, str]:
    """Match modules whose outputs have as many elements, in order."""
    remaining = list(port_modules)
    matches = {}
    for one in modules:
        if other := next((other for other in remaining if _have_same_elements(one.shape, other.shape)), None):
            remaining.remove(other)
            matches[one.name] = other.name
    return matches


def _with_the_same_draws(module_matches: Mapping[str, str], draw_matches: Mapping[str, str]) -> dict[str, str]:
    """Leave out matched modules whose draws differ.

    For example, an attention that drops its output itself does not match an attention whose output the layer around it
    drops.
    """

    def have_same_draws(module: str, counterpart: str) -> bool:
        pairs = (
            (TensorName.parse(theirs).module, TensorName.parse(ours).module) for ours, theirs in draw_matches.items()
        )
        return all(_is_in(here, module) == _is_in(there, counterpart) for here, there in pairs)

    return {one: other for one, other in module_matches.items() if have_same_draws(one, other)}


def _orders_of(
    reference_description: Description, module_matches: Mapping[str, str], parameter_matches: Sequence[ParameterMatch]
) -> dict[str, OutputOrder]:
    """Return the order of each output's features in the port, by module, where a map permutes a weight's rows.

    Args:
        reference_description: description of the reference.
        module_matches: name of the port's module, by the name of the reference's module.
        parameter_matches: matches of the parameters.
    """
    facts = {one.name: one for one in reference_description.parameters}
    pieces: dict[str, list[ParameterMatch]] = defaultdict(list)
    for match in parameter_matches:
        pieces[match.reference].append(match)
    orders = {}
    for name, matches in pieces.items():
        one, module, [port, *others] = facts[name], facts[name].module, {match.port: None for match in matches}
        is_of_module = not others and port.rpartition(".")[0] == module_matches.get(module)
        rows = [match.port_rows for match in matches]
        if not is_of_module or one.role == "embedding" or len(rows) == 1 or None in rows:
            continue
        places = [place for first, end in filter(None, rows) for place in range(first, end)]
        orders[module] = OutputOrder(1 if one.role == "conv" else -1, places)
    return orders


def _is_in(path: str, module: str) -> bool:
    """Return whether a module's path is ``module`` or is inside of it."""
    return path == module or path.startswith(f"{module}.")


def _have_same_elements(theirs: tuple[int, ...] | None, ours: tuple[int, ...] | None) -> bool:
    """Return whether two outputs may hold the same vectors: B x T x D and B*T x D, or another order of the axes.

    Args:
        theirs: shape in the reference; None if it is unknown.
        ours: shape in the port; None if it is unknown.
    """
    if not theirs or not ours:
        return theirs == ours == ()
    return (theirs[-1] == ours[-1] and math.prod(theirs) == math.prod(ours)) or axes_between(theirs, ours) is not None


def _shapes_conflict(theirs: tuple[int, ...] | None, ours: tuple[int, ...] | None) -> bool:
    """Return whether broadcasting cannot make two shapes equal.

    Positions may be embedded for each text of a batch, or once for the whole batch.

    Args:
        theirs: shape in the reference; None if it is unknown.
        ours: shape in the port; None if it is unknown.
    """
    if not theirs or not ours:
        return False
    return any(here != there and 1 not in (here, there) for here, there in zip(theirs[::-1], ours[::-1], strict=False))


def _group_by_parameters(
    modules: Iterable[ModuleFacts], matched_names: Mapping[str, set[str]], *, themselves: bool
) -> dict[frozenset[str], list[ModuleFacts]]:
    """Group modules by the parameters that they contain, the outermost first.

    Args:
        modules: modules of one side.
        matched_names: path of a parameter -> the reference's names of its matches.
        themselves: True for the modules that hold parameters themselves, False for the modules around them.
    """
    owners = {name.rpartition(".")[0] for name in matched_names}
    groups: dict[frozenset[str], list[ModuleFacts]] = defaultdict(list)
    for module in dict.fromkeys(modules):
        parameter_names = frozenset().union(
            *(matched_names[name] for name in matched_names if name.startswith(f"{module.name}."))
        )
        if module.name and parameter_names and (module.name in owners) == themselves:
            groups[parameter_names].append(module)
    return {
        parameter_names: sorted(group, key=lambda one: one.name.count(".")) for parameter_names, group in groups.items()
    }


# -- draws ----------------------------------------------------------------------------------------------------------


def match_draws(
    reference_draws: Sequence[DrawFacts],
    port_draws: Sequence[DrawFacts],
    module_matches: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Match the port's draws with the reference's draws, separately for each kind, in execution order.

    Only draws of equally many numbers match. The names decide between possible alignments. A draw that only one side
    makes is left out, and the gate reports its name. Two encoders may run in another order: if at least as many draws
    match within matched modules, in any order of the modules, these matches are returned.

    Args:
        reference_draws: draws of the reference.
        port_draws: draws of the port.
        module_matches: path of a module of the reference -> path of its counterpart.

    Returns:
        Name of the port's draw -> name of the reference's draw.
    """
    matches: dict[str, str] = {}
    for kind in dict.fromkeys(draw.kind for draw in port_draws):
        ours, theirs = ([one for one in side if one.kind == kind] for side in (port_draws, reference_draws))
        matches |= _in_counterparts(theirs, ours, module_matches or {}) or _pair_names(
            theirs, ours, _align_draws(theirs, ours)
        )
    return matches


def _pair_names(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], places: Sequence[tuple[int, int]]
) -> dict[str, str]:
    """Return the reference's name of each draw of the port, by the port's name.

    Args:
        theirs: draws of the reference.
        ours: draws of the port.
        places: pairs of an index in ``theirs`` and an index in ``ours``.
    """
    return {ours[column].name: theirs[row].name for row, column in places}


def _in_counterparts(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], module_matches: Mapping[str, str]
) -> dict[str, str]:
    """Return the matches of draws within matched modules, in any order of the modules.

    Return {} if these are fewer than the matches in one order.

    Args:
        theirs: draws of the reference.
        ours: draws of the port.
        module_matches: name of the port's module, by the name of the reference's module.
    """
    counterparts = {port: reference for reference, port in module_matches.items()}
    their_modules = [_find_innermost(one, module_matches) for one in theirs]
    our_modules = [counterparts.get(_find_innermost(one, counterparts), "") for one in ours]
    is_possible = np.array(
        [[_is_in(a, b) or _is_in(b, a) or "" in (a, b) for b in our_modules] for a in their_modules], bool
    ).reshape(len(theirs), len(ours))
    matches: dict[str, str] = {}
    while aligned_places := _align_draws(theirs, ours, is_possible):
        matches |= _pair_names(theirs, ours, aligned_places)
        for row, column in aligned_places:
            is_possible[row], is_possible[:, column] = False, False
    return matches if len(matches) >= len(_align_draws(theirs, ours)) else {}


def _find_innermost(draw: DrawFacts, module_paths: Iterable[str]) -> str:
    """Return the path of the innermost module that makes a draw; empty if none of the modules makes it."""
    module = TensorName.parse(draw.name).module
    return max((one for one in module_paths if _is_in(module, one)), key=len, default="")


def _align_draws(
    theirs: Sequence[DrawFacts], ours: Sequence[DrawFacts], is_possible: np.ndarray | float = 1.0
) -> list[tuple[int, int]]:
    """Return the places of matching draws: the best alignment of two sequences (Needleman and Wunsch 1970).

    Args:
        theirs: draws of the reference.
        ours: draws of the port.
        is_possible: whether two draws may match, (reference's draws, port's draws); by default any two may.
    """
    scores = np.array([[_match_score(one, other) for other in ours] for one in theirs]).reshape(len(theirs), len(ours))
    scores = scores * is_possible
    best = np.zeros((len(theirs) + 1, len(ours) + 1))
    for row in range(len(theirs) - 1, -1, -1):
        for column in range(len(ours) - 1, -1, -1):
            both = scores[row, column] + best[row + 1, column + 1] if scores[row, column] else 0.0
            best[row, column] = max(both, best[row + 1, column], best[row, column + 1])
    places, row, column = [], 0, 0
    while row < len(theirs) and column < len(ours):
        if scores[row, column] and np.isclose(best[row, column], scores[row, column] + best[row + 1, column + 1]):
            places.append((row, column))
            row, column = row + 1, column + 1
        elif best[row + 1, column] >= best[row, column + 1]:
            row += 1
        else:
            column += 1
    return places


def _match_score(theirs: DrawFacts, ours: DrawFacts) -> float:
    """Return how well two draws match; 0 if they cannot.

    Args:
        theirs: draw of the reference.
        ours: draw of the port.
    """
    if math.prod(theirs.shape) != math.prod(ours.shape):
        return 0.0
    return 3.0 - name_distance(theirs.name.partition(":")[2], ours.name.partition(":")[2])
