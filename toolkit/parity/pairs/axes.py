"""Find how the axes of the port's tensors correspond to the reference's: channels last, or time first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import permutations

from toolkit.parity.job.pair import Description, ModuleFacts

#: Values for a tensor's axes in a map, in addition to a list of axes.
CHANNELS_LAST, AS_IT_IS = "channels-last", "as-it-is"
#: Largest number of axes that are tried in every order.
MAX_RANK = 6


def axes_between(theirs: Sequence[int], ours: Sequence[int], *, is_channels_last: bool = False) -> list[int] | None:
    """Return the axes of the port's tensor in the reference's order; None if they are the same or cannot be the same.

    Args:
        theirs: shape of the reference's tensor.
        ours: shape of the port's tensor.
        is_channels_last: whether the port keeps channels last; it decides if several orders fit the shapes.
    """
    rank = len(theirs)
    if not 2 < rank <= MAX_RANK or sorted(theirs) != sorted(ours):
        return None
    fits = [list(axes) for axes in permutations(range(rank)) if [ours[axis] for axis in axes] == list(theirs)]
    as_it_is, last, time_first = list(range(rank)), channels_last(rank), [1, 0, *range(2, rank)]
    likely = ([last, as_it_is] if is_channels_last else [as_it_is, last]) + [time_first]
    likely_axes = next((axes for axes in [*likely, *fits] if axes in fits), as_it_is)
    return None if likely_axes == as_it_is else likely_axes


def channels_last(rank: int) -> list[int]:
    """Return the axes of N x ... x C in the order N x C x ..."""
    return [0, rank - 1, *range(1, rank - 1)]


def axes_of(
    reference_description: Description,
    port_description: Description,
    module_matches: Mapping[str, str],
    draw_matches: Mapping[str, str],
    user_layouts: Mapping[str, str | Sequence[int]],
) -> dict[str, list[int]]:
    """Return the axes of matched outputs and draws whose order differs, by the reference's name of the module or draw.

    Args:
        reference_description: description of the reference.
        port_description: description of the port.
        module_matches: path of a module of the reference -> path of its counterpart (:class:`.PairMap`).
        draw_matches: name of a draw of the port -> name of its counterpart (:class:`.PairMap`).
        user_layouts: pattern of module and draw names -> axes, from the user's map.
    """
    ours = {one.name: one.shape for one in port_description.modules if one.shape}
    port_draw_shapes = {one.name: one.shape for one in port_description.draws}
    pairs = [
        (one.name, one.shape, ours.get(module_matches[one.name]))
        for one in reference_description.modules
        if one.name in module_matches
    ]
    by_theirs = {theirs: port_draw_shapes[name] for name, theirs in draw_matches.items()}
    pairs += [
        (one.name, tuple(one.shape), tuple(by_theirs[one.name]))
        for one in reference_description.draws
        if one.name in by_theirs
    ]
    ranks = _ranks_with_channels_last(port_description.modules)
    axes_by_name = {}
    for name, theirs, port_shape in pairs:
        if not theirs or not port_shape:
            continue
        user_axes = next((axes for pattern, axes in user_layouts.items() if fnmatchcase(name, pattern)), None)
        axes = (
            axes_between(theirs, port_shape, is_channels_last=len(theirs) in ranks)
            if user_axes is None
            else _resolve_user_axes(user_axes, len(theirs))
        )
        if axes:
            axes_by_name[name] = axes
    return axes_by_name


def _resolve_user_axes(user_axes: str | Sequence[int], rank: int) -> list[int] | None:
    """Return the axes from the user's map; None if they do not fit the tensor's rank or do not change it."""
    axes = (
        channels_last(rank) if user_axes == CHANNELS_LAST else list(user_axes) if not isinstance(user_axes, str) else []
    )
    return axes if rank > 2 and sorted(axes) == list(range(rank)) else None


def _ranks_with_channels_last(modules: Sequence[ModuleFacts]) -> Collection[int]:
    """Return the ranks that only occur in layouts of the port with channels last."""
    layout_by_rank = {len(one.layout): one.layout for one in modules if one.layout}
    channels_first_ranks = {len(one.layout) for one in modules if one.layout[1:2] == "C"}
    return layout_by_rank.keys() - channels_first_ranks
