"""Converts parameters and gradients between the layouts of a pair's port and reference.

A map may transpose, reshape, slice, concatenate and shift parameters. A shift adds the constant ``offset`` of a match
to the reference's values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from toolkit.parity.job.pair import ParameterMatch


class Layout:
    """Correspondence of the parameters of the two sides of a pair.

    Args:
        matches: correspondences of parameters or slices of parameters, from the pair's map.
        shapes: shape of each parameter of the reference, by name, in the reference's layout.

    Attributes:
        by_reference: matches of each parameter of the reference, in the order of its slices.
        by_port: matches of each parameter of the port, in the order of its slices.
    """

    def __init__(self, matches: Sequence[ParameterMatch], shapes: Mapping[str, Sequence[int]]) -> None:
        self.shapes = shapes
        self.by_reference: dict[str, list[ParameterMatch]] = defaultdict(list)
        self.by_port: dict[str, list[ParameterMatch]] = defaultdict(list)
        for match in sorted(matches, key=lambda match: match.rows or ()):
            self.by_reference[match.reference].append(match)
        for match in sorted(matches, key=lambda match: match.port_rows or match.rows or ()):
            self.by_port[match.port].append(match)

    def reference_arrays(
        self, get_array: Callable[[str], np.ndarray | None], is_weight: bool = False
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the array of each parameter of the reference, assembled from the port's arrays.

        A parameter is omitted if all its pieces are missing. If some pieces are missing, they are filled with zeros.

        Args:
            get_array: function that returns the array of a parameter of the port, such as its gradient, given its name;
                None if the parameter has no array.
            is_weight: whether the arrays are the values of the parameters, so that a match's offset is subtracted;
                False for gradients.
        """
        for name in self.by_reference:
            if (array := self.reference_array(name, get_array, is_weight)) is not None:
                yield name, array

    def reference_array(
        self, reference_name: str, get_array: Callable[[str], np.ndarray | None], is_weight: bool = False
    ) -> np.ndarray | None:
        """Return the array of one parameter of the reference, assembled from the port's arrays.

        The result is None if all pieces are missing. Otherwise missing pieces are filled with zeros.

        Args:
            reference_name: the reference's name of the parameter.
            get_array: function that returns the array of a parameter of the port, given its name, or None.
            is_weight: whether the arrays are the values of the parameters, so that a match's offset is subtracted.
        """
        matches = self.by_reference[reference_name]
        pieces = [(match, get_array(match.port)) for match in matches]
        if all(piece is None for _, piece in pieces):
            return None
        arrays = [self._reference_slice(match, piece, is_weight) for match, piece in pieces]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=matches[0].axis)

    def complete_counterparts(self, port_name: str) -> list[str] | None:
        """Return the names of the reference's parameters that a parameter of the port contains completely.

        The result is None if one of these parameters is also partly in another parameter of the port. It is empty if
        the parameter has no counterpart.

        Args:
            port_name: the port's name of the parameter.
        """
        names = [match.reference for match in self.by_port.get(port_name, ())]
        return names if all(len(self.by_reference[name]) == 1 for name in names) else None

    def _reference_slice(self, match: ParameterMatch, port_array: np.ndarray | None, is_weight: bool) -> np.ndarray:
        """Return one slice of a parameter of the reference, or zeros if ``port_array`` is None.

        Args:
            match: correspondence of the slice.
            port_array: array of the whole parameter of the port.
            is_weight: whether to subtract the match's offset.
        """
        shape = list(self.shapes[match.reference])
        if match.rows is not None:
            shape[match.axis] = match.rows[1] - match.rows[0]
        if port_array is None:
            return np.zeros(shape)
        port_array = port_array.T if match.transpose else port_array
        if match.port_rows is not None:
            port_array = np.take(port_array, range(*match.port_rows), axis=match.axis)
        return port_array.reshape(shape) - match.offset if is_weight and match.offset else port_array.reshape(shape)

    def port_array(
        self,
        port_name: str,
        shape: Sequence[int],
        get_array: Callable[[str], np.ndarray | None],
        is_weight: bool = False,
    ) -> np.ndarray | None:
        """Return the array of a parameter of the port, assembled from the reference's arrays.

        The result is None if the parameter has no match, or if the array of one of its pieces is missing.

        Args:
            port_name: the port's name of the parameter.
            shape: shape of the parameter in the port.
            get_array: function that returns the array of a parameter of the reference, given its name, or None.
            is_weight: whether the arrays are the values of the parameters, so that a match's offset is added; False for
                gradients.
        """
        pieces = []
        for match in self.by_port.get(port_name, ()):
            piece = get_array(match.reference)
            if piece is None:
                return None
            if match.rows is not None:
                piece = np.take(piece, range(*match.rows), axis=match.axis)
            pieces.append((match, piece + match.offset if is_weight and match.offset else piece))
        if not pieces:
            return None
        match = pieces[0][0]
        array = pieces[0][1] if len(pieces) == 1 else np.concatenate([piece for _, piece in pieces], axis=match.axis)
        return np.ascontiguousarray(array.reshape(shape[::-1]).T if match.transpose else array.reshape(shape))
