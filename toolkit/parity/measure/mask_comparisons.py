"""Observation of the comparisons in a forward whose results mask a tensor, such as ``position <= length``.

A comparison that excludes nothing on a batch would hide its faults. Each side follows the result of each comparison
until the result masks a floating-point tensor. A limit that no position reaches (``distance.clamp(max=64)``), and a
choice between two results that always takes the same result, hide faults, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

#: Name of a comparing operation in either framework -> operator in :class:`MaskFacts`.
COMPARISONS = {
    **dict.fromkeys(("lt", "less", "less_than"), "<"),
    **dict.fromkeys(("le", "less_equal"), "<="),
    **dict.fromkeys(("gt", "greater", "greater_than"), ">"),
    **dict.fromkeys(("ge", "greater_equal"), ">="),
    "triu": "triu",
    "tril": "tril",
}
#: Operators that keep a triangle of a matrix, and compare the indices of rows and columns.
TRIANGLES = ("triu", "tril")
#: Names of operations that change a floating-point tensor by a mask.
MASKING = ("masked_fill", "add", "sub", "subtract", "mul", "multiply", "index_put", "setitem")
#: Names of operations that choose between two branches. They hide elements only if a branch is a constant: otherwise
#: both branches are results.
CHOICES = ("where",)
#: Names of operations that limit numbers to a range.
LIMITS = ("clamp", "clamp_min", "clamp_max", "clip", "minimum", "maximum")


@dataclass(frozen=True)
class MaskFacts:
    """A comparison in the user's code whose result masks a floating-point tensor.

    Attributes:
        line: ``file:line`` of the call.
        column: column of the call in this line, counted from 1.
        operator: ``<``, ``<=``, ``>``, ``>=``, ``triu`` or ``tril``.
        module: dotted path of the module that was running.
        hides: whether the comparison excludes an element on the batch.
    """

    line: str
    column: int
    operator: str
    module: str
    hides: bool

    @property
    def site(self) -> str:
        """The source location of the call, ``file:line:column``."""
        return f"{self.line}:{self.column}"


@dataclass(frozen=True)
class UnreachedFacts:
    """A limit or a choice in the user's code whose other outcome does not occur on the batch.

    Attributes:
        kind: ``limit`` of whole numbers that no number reaches, or ``choice`` between two results that always takes
            the same result.
        line: ``file:line`` of the limit, or of the comparison that decides the choice.
        operator: name of the limiting operation, or the comparison's operator.
    """

    kind: str
    line: str
    operator: str


class Site(NamedTuple):
    """The source location of a call, and the module that runs it.

    Attributes:
        line: ``file:line`` of the call.
        column: column of the call, counted from 1.
        module: dotted path of the running module.
    """

    line: str
    column: int
    module: str


class MaskComparisons:
    """Follows the results of comparisons through the operations of a forward, to find the masks among them.

    Args:
        key_of: returns the address of a tensor's memory. Two tensors with the same address hold the same mask.
        numbers_of: returns a tensor's values as a NumPy array.
        site: returns the source location of the running operation; None if it is not in the user's code.
    """

    def __init__(
        self, key_of: Callable[[Any], int], numbers_of: Callable[[Any], np.ndarray], site: Callable[[], Site | None]
    ) -> None:
        self._key_of, self._numbers_of, self._site = key_of, numbers_of, site
        self._operators: dict[Site, str] = {}
        self._has_excluded: dict[Site, bool] = {}
        self._masking: set[Site] = set()
        self._choosing: set[Site] = set()
        self._limits: dict[Site, str] = {}
        self._is_reached: dict[Site, bool] = {}
        #: Comparisons that produced a mask, by the address of its memory. The tensors are kept, so that none is freed.
        self._sources: dict[int, set[Site]] = {}
        self._mask_tensors: list[Any] = []

    def facts(self) -> list[MaskFacts]:
        """Return the comparisons whose results have masked a floating-point tensor, in the order of execution."""
        return [
            MaskFacts(site.line, site.column, self._operators[site], site.module, self._has_excluded[site])
            for site in self._operators
            if site in self._masking
        ]

    def unreached_facts(self) -> list[UnreachedFacts]:
        """Return the limits that no number reaches and the choices that always take the same result."""
        limits = [
            UnreachedFacts("limit", site.line, operator)
            for site, operator in self._limits.items()
            if not self._is_reached[site]
        ]
        choices = [
            UnreachedFacts("choice", site.line, operator)
            for site, operator in self._operators.items()
            if site in self._choosing - self._masking and not self._has_excluded[site]
        ]
        return [*limits, *choices]

    def observe(self, name: str, inputs: Iterable[Any], results: Iterable[Any]) -> None:
        """Follow the masks through an operation: record a comparison, a mask made from masks, or a masked tensor.

        Args:
            name: name of the operation, without the underscores of an in-place operation.
            inputs: tensors that it reads.
            results: tensors that it returns.
        """
        inputs, results = [*inputs], [*results]
        if name in LIMITS and results:
            self._note_limit(name, inputs, results[0])
        sources = set().union(*map(self._sources_of, inputs))
        if name in COMPARISONS and results and (site := self._note_comparison(name, inputs, results[0])):
            self._mark(results, {site, *sources})
            return
        if not sources:
            return
        branches = [tensor for tensor in inputs if not self._sources_of(tensor)]
        data = [tensor for tensor in branches if not self._is_mask_like(tensor)]
        if name in CHOICES and data and (self._is_integer(results[0]) or not self._excludes_elements(name, branches)):
            self._choosing |= sources
        if not data:
            if name not in CHOICES or not branches or any(map(self._is_constant, branches)):
                self._mark(results, sources)
        elif any(self._numbers_of(tensor).dtype.kind in "fc" for tensor in data) and self._excludes_elements(
            name, branches
        ):
            self._masking |= sources

    def _note_comparison(self, name: str, inputs: list[Any], result: Any) -> Site | None:
        """Record a comparison of positions, and return its source location; None for any other comparison.

        Args:
            name: name of the operation.
            inputs: tensors that are compared.
            result: tensor that the operation returns.
        """
        site = self._site()
        values = self._numbers_of(result)
        if site is None or values.size < 2:
            return None
        input_values = [self._numbers_of(tensor) for tensor in inputs]
        is_triangle = COMPARISONS[name] in TRIANGLES
        if is_triangle:
            if not (_is_constant(input_values[0]) or self._sources_of(inputs[0])):
                return None
        elif not all(map(_is_whole, input_values)):
            return None
        hides = not _is_constant(values) and not (is_triangle and np.array_equal(values, input_values[0]))
        self._operators.setdefault(site, COMPARISONS[name])
        self._has_excluded[site] = self._has_excluded.get(site, False) or hides
        return site

    def _note_limit(self, name: str, inputs: list[Any], result: Any) -> None:
        """Record whether a limit changes any of the whole numbers that it limits, such as positions or distances.

        Args:
            name: name of the operation.
            inputs: limited tensor, and the limits that are tensors.
            result: tensor that the operation returns.
        """
        if not self._is_integer(result) or (site := self._site()) is None:
            return
        values = self._numbers_of(result)
        if values.size < 2:  # one number, such as a length, has no position that could reach the limit
            return
        is_reached = not any(np.array_equal(values, self._numbers_of(tensor)) for tensor in inputs)
        self._limits.setdefault(site, name)
        self._is_reached[site] = self._is_reached.get(site, False) or is_reached

    def _mark(self, results: Iterable[Any], sources: set[Site]) -> None:
        """Record that the tensors of ``results`` hold a mask that these comparisons produced."""
        for tensor in results:
            if key := self._key_of(tensor):  # every empty tensor has the address 0
                self._sources.setdefault(key, set()).update(sources)
                self._mask_tensors.append(tensor)

    def _sources_of(self, tensor: Any) -> set[Site]:
        """Return the comparisons that produced the mask in a tensor; empty for any other tensor."""
        return self._sources.get(self._key_of(tensor), set())

    def _is_constant(self, tensor: Any) -> bool:
        """Return whether all elements of a framework's tensor are equal."""
        return _is_constant(self._numbers_of(tensor))

    def _is_integer(self, tensor: Any) -> bool:
        """Return whether a framework's tensor holds integers, such as positions or the rows of a table."""
        return self._numbers_of(tensor).dtype.kind in "iu"

    def _is_mask_like(self, tensor: Any) -> bool:
        """Return whether a tensor is a single number, or a mask of booleans or of 0 and 1."""
        values = self._numbers_of(tensor)
        return values.dtype.kind == "b" or values.size == 1 or bool(np.isin(values, (0, 1)).all())

    def _excludes_elements(self, name: str, branches: list[Any]) -> bool:
        """Return whether an operation with a mask hides the elements that the mask excludes.

        Args:
            name: name of the operation.
            branches: inputs of the operation that are not masks.
        """
        is_choice = name in CHOICES and (len(branches) < 2 or any(map(self._is_constant, branches)))
        return name in MASKING or is_choice


def _is_constant(values: np.ndarray) -> bool:
    """Return whether all elements of an array are equal."""
    return bool((values == values.flat[0]).all()) if values.size else True


def _is_whole(values: np.ndarray) -> bool:
    """Return whether an array holds only whole numbers, such as positions or lengths."""
    return values.dtype.kind in "biu" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))


def column_of(frame: FrameType) -> int:
    """Return the column of the call that a frame is making, counted from 1.

    Before Python 3.11, the result is another number that distinguishes the calls of a line.
    """
    if sys.version_info >= (3, 11):
        positions = list(frame.f_code.co_positions())
        return (positions[frame.f_lasti // 2][2] or 0) + 1
    return frame.f_lasti  # it also distinguishes two calls on one line
