"""Find how the axes of the port's tensors correspond to the reference's: channels last, or time first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import permutations

from toolkit.parity.job.pair import Description, ModuleFacts

#: What a map may say of a tensor's axes besides their numbers.
CHANNELS_LAST, AS_IT_IS = "channels-last", "as-it-is"
#: Most axes that are tried in every order.
MOST = 6


def axes_between(theirs: Sequence[int], ours: Sequence[int], is_channels_last: bool = False) -> list[int] | None:
    """Return the axes of the port's tensor in the reference's order; None if they are the same or cannot be the same.

    Args:
        is_channels_last: whether the port keeps channels last; it decides where the shapes leave it open.
    """
    rank = len(theirs)
    if not 2 < rank <= MOST or sorted(theirs) != sorted(ours):
        return None
    fits = [list(axes) for axes in permutations(range(rank)) if [ours[axis] for axis in axes] == list(theirs)]
    as_it_is, last, time_first = list(range(rank)), channels_last(rank), [1, 0, *range(2, rank)]
    likely = ([last, as_it_is] if is_channels_last else [as_it_is, last]) + [time_first]
    found = next((axes for axes in [*likely, *fits] if axes in fits), as_it_is)
    return None if found == as_it_is else found


def channels_last(rank: int) -> list[int]:
    """Return the axes of N x ... x C in the order N x C x ..."""
    return [0, rank - 1, *range(1, rank - 1)]


def axes_of(
    reference: Description, port: Description, modules: Mapping[str, str], draws: Mapping[str, str],
    told: Mapping[str, str | Sequence[int]],
) -> dict[str, list[int]]:  # fmt: skip
    """Return the axes of matched outputs and draws whose order differs, by the reference's name of the module or draw.

    Args:
        modules, draws: of the map; :class:`.PairMap`.
        told: pattern of such names -> axes, as the user says.
    """
    ours = {one.name: one.shape for one in port.modules if one.shape}
    made = {one.name: one.shape for one in port.draws}
    pairs = [(one.name, one.shape, ours.get(modules[one.name])) for one in reference.modules if one.name in modules]
    by_theirs = {theirs: made[name] for name, theirs in draws.items()}
    pairs += [
        (one.name, tuple(one.shape), tuple(by_theirs[one.name])) for one in reference.draws if one.name in by_theirs
    ]
    ranks = _ranks_with_channels_last(port.modules)
    found = {}
    for name, theirs, here in pairs:
        if not theirs or not here:
            continue
        said = next((axes for pattern, axes in told.items() if fnmatchcase(name, pattern)), None)
        axes = axes_between(theirs, here, len(theirs) in ranks) if said is None else _as_told(said, len(theirs))
        if axes:
            found[name] = axes
    return found


def _as_told(said: str | Sequence[int], rank: int) -> list[int] | None:
    """Return what the user says of a tensor's axes; None if it does not fit its rank, or is as it is."""
    axes = channels_last(rank) if said == CHANNELS_LAST else list(said) if not isinstance(said, str) else []
    return axes if rank > 2 and sorted(axes) == list(range(rank)) else None


def _ranks_with_channels_last(modules: Sequence[ModuleFacts]) -> Collection[int]:
    """Return the ranks of outputs of which all of the port's layers that tell keep channels last."""
    told = {len(one.layout): one.layout for one in modules if one.layout}
    first = {len(one.layout) for one in modules if one.layout[1:2] == "C"}
    return told.keys() - first
