"""The port's parameters in the layout of the reference's, and back: transposed, reshaped, split, joined and shifted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from toolkit.parity.job.pair import ParameterMatch


class Layout:
    """How the arrays of two sides correspond.

    Args:
        matches: of the pair's map.
        shapes: of the reference's parameters, as it holds them.
    """

    def __init__(self, matches: Sequence[ParameterMatch], shapes: Mapping[str, Sequence[int]]) -> None:
        self.shapes = shapes
        self.by_reference: dict[str, list[ParameterMatch]] = defaultdict(list)
        self.by_port: dict[str, list[ParameterMatch]] = defaultdict(list)
        for match in sorted(matches, key=lambda one: one.rows or ()):
            self.by_reference[match.reference].append(match)
        for match in sorted(matches, key=lambda one: one.port_rows or one.rows or ()):
            self.by_port[match.port].append(match)

    def of_reference(
        self, value: Callable[[str], np.ndarray | None], is_weight: bool = False
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each parameter of the reference, put together from the port's.

        Args:
            value: gives the array of a parameter of the port; None if there is none, as for a gradient. One that lacks
                a piece holds zeros there.
            is_weight: whether the arrays are the parameters' own values, which an offset shifts, and no gradients.
        """
        for name in self.by_reference:
            if (array := self.of_one_reference(name, value, is_weight)) is not None:
                yield name, array

    def of_one_reference(
        self, name: str, value: Callable[[str], np.ndarray | None], is_weight: bool = False
    ) -> np.ndarray | None:
        """Return one parameter of the reference, as :meth:`of_reference` does; None if all of its pieces are None."""
        matches = self.by_reference[name]
        pieces = [(match, value(match.port)) for match in matches]
        if all(piece is None for _, piece in pieces):
            return None
        arrays = [self._piece_of_reference(match, piece, is_weight) for match, piece in pieces]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=matches[0].axis)

    def whole_in(self, port: str) -> list[str] | None:
        """Return the reference's parameters that are in one of the port's; None if one of them is in others, too."""
        names = [match.reference for match in self.by_port.get(port, ())]
        return names if all(len(self.by_reference[name]) == 1 for name in names) else None

    def _piece_of_reference(self, match: ParameterMatch, value: np.ndarray | None, is_weight: bool) -> np.ndarray:
        shape = list(self.shapes[match.reference])
        if match.rows is not None:
            shape[match.axis] = match.rows[1] - match.rows[0]
        if value is None:
            return np.zeros(shape)
        value = value.T if match.transpose else value
        if match.port_rows is not None:
            value = np.take(value, range(*match.port_rows), axis=match.axis)
        return value.reshape(shape) - match.offset if is_weight and match.offset else value.reshape(shape)

    def of_port(
        self,
        port: str,
        shape: Sequence[int],
        value: Callable[[str], np.ndarray | None],
        is_weight: bool = False,
    ) -> np.ndarray | None:
        """Return a parameter of the port, put together from the reference's; None if one of these is missing.

        Args:
            value: gives the array of a parameter of the reference.
            is_weight: of :meth:`of_reference`.
        """
        pieces = []
        for match in self.by_port.get(port, ()):
            piece = value(match.reference)
            if piece is None:
                return None
            if match.rows is not None:
                piece = np.take(piece, range(*match.rows), axis=match.axis)
            pieces.append((match, piece + match.offset if is_weight and match.offset else piece))
        if not pieces:
            return None
        match = pieces[0][0]
        whole = pieces[0][1] if len(pieces) == 1 else np.concatenate([one for _, one in pieces], axis=match.axis)
        return np.ascontiguousarray(whole.reshape(shape[::-1]).T if match.transpose else whole.reshape(shape))
