"""Comparisons of positions that make a mask: which of them exclude nothing on a batch, so that a fault in them is not
seen. Either side follows the result of each comparison until it masks a floating-point tensor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

#: Name of an operation in either framework -> its operator, of those that compare with a bound.
COMPARISONS = {
    **dict.fromkeys(("lt", "less", "less_than"), "<"),
    **dict.fromkeys(("le", "less_equal"), "<="),
    **dict.fromkeys(("gt", "greater", "greater_than"), ">"),
    **dict.fromkeys(("ge", "greater_equal"), ">="),
    "triu": "triu",
    "tril": "tril",
}
TRIANGLES = ("triu", "tril")
#: Operations that change a floating-point tensor by a mask. In :data:`CHOICES`, one side must be a constant:
#: otherwise the condition chooses between two results and hides none.
MASKING = ("masked_fill", "add", "sub", "subtract", "mul", "multiply", "index_put", "setitem")
CHOICES = ("where",)


@dataclass(frozen=True)
class MaskFacts:
    """A comparison whose result masks a tensor.

    Attributes:
        line: ``file:line`` of its call.
        column: of the call in that line, counted from 1.
        operator: ``<``, ``<=``, ``>``, ``>=``, ``triu`` or ``tril``.
        module: path of the module that was running.
        hides: whether it excludes something on the batch.
    """

    line: str
    column: int
    operator: str
    module: str
    hides: bool

    @property
    def site(self) -> str:
        """The call's place in the source."""
        return f"{self.line}:{self.column}"


class Site(NamedTuple):
    """A call in the source of a side.

    Attributes:
        line: its ``file:line``.
        column: counted from 1.
        module: path of the running module.
    """

    line: str
    column: int
    module: str


class MaskComparisons:
    """Follows comparisons through the operations of one forward.

    Args:
        key_of: returns the address of a tensor's memory; two tensors that share it hold the same mask.
        numbers_of: returns a tensor's values as a NumPy array.
        site: returns the source location of the operation at work; None if it is not the user's.
    """

    def __init__(
        self, key_of: Callable[[Any], int], numbers_of: Callable[[Any], np.ndarray], site: Callable[[], Site | None]
    ) -> None:
        self._key_of, self._numbers_of, self._site = key_of, numbers_of, site
        self._operators: dict[Site, str] = {}
        self._excludes: dict[Site, bool] = {}
        self._masking: set[Site] = set()
        #: Memory of a mask -> the comparisons that produced it. The tensors are kept too, so that none is freed.
        self._sources: dict[int, set[Site]] = {}
        self._held: list[Any] = []

    def facts(self) -> list[MaskFacts]:
        """Return the comparisons whose results have masked something, in the order of execution."""
        return [
            MaskFacts(site.line, site.column, self._operators[site], site.module, self._excludes[site])
            for site in self._operators
            if site in self._masking
        ]

    def observe(self, name: str, inputs: Iterable[Any], results: Iterable[Any]) -> None:
        """Follow one operation, given its tensors. In-place operations have the name without underscores."""
        inputs, results = [*inputs], [*results]
        sources = set().union(*map(self._sources_of, inputs))
        if name in COMPARISONS and results and (site := self._note_comparison(name, inputs, results[0])):
            self._mark(results, {site, *sources})
            return
        if not sources:
            return
        others = [one for one in inputs if not self._sources_of(one)]
        data = [one for one in others if not self._is_mask_like(one)]
        if not data:
            if name not in CHOICES or not others or any(map(self._is_constant, others)):
                self._mark(results, sources)
        elif any(self._kind_of(one) in "fc" for one in data) and self._hides(name, inputs):
            self._masking |= sources

    def _note_comparison(self, name: str, inputs: list[Any], result: Any) -> Site | None:
        """Note a comparison and return its site; return None if it does not compare positions."""
        site = self._site()
        values = self._numbers_of(result)
        if site is None or values.size < 2:
            return None
        input_values = [self._numbers_of(one) for one in inputs]
        is_triangle = COMPARISONS[name] in TRIANGLES
        if is_triangle:
            if not (_is_constant(input_values[0]) or self._sources_of(inputs[0])):
                return None
        elif not all(map(_is_whole, input_values)):
            return None
        hides = not _is_constant(values) and not (is_triangle and np.array_equal(values, input_values[0]))
        self._operators.setdefault(site, COMPARISONS[name])
        self._excludes[site] = self._excludes.get(site, False) or hides
        return site

    def _mark(self, results: Iterable[Any], sources: set[Site]) -> None:
        for one in results:
            if key := self._key_of(one):  # 0 of every empty tensor
                self._sources.setdefault(key, set()).update(sources)
                self._held.append(one)

    def _sources_of(self, tensor: Any) -> set[Site]:
        return self._sources.get(self._key_of(tensor), set())

    def _kind_of(self, tensor: Any) -> str:
        return self._numbers_of(tensor).dtype.kind

    def _is_constant(self, tensor: Any) -> bool:
        return _is_constant(self._numbers_of(tensor))

    def _is_mask_like(self, tensor: Any) -> bool:
        """Return whether a tensor is a number, or a mask itself: of truth values, or of 0 and 1."""
        values = self._numbers_of(tensor)
        return values.dtype.kind == "b" or values.size == 1 or bool(np.isin(values, (0, 1)).all())

    def _hides(self, name: str, inputs: list[Any]) -> bool:
        """Return whether an operation with a mask hides what that excludes."""
        branches = [one for one in inputs if not self._sources_of(one)]
        is_choice = name in CHOICES and (len(branches) < 2 or any(map(self._is_constant, branches)))
        return name in MASKING or is_choice


def _is_constant(values: np.ndarray) -> bool:
    return bool((values == values.flat[0]).all()) if values.size else True


def _is_whole(values: np.ndarray) -> bool:
    """Return whether an array holds whole numbers, as positions and lengths are."""
    return values.dtype.kind in "biu" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))


def column_of(frame: FrameType) -> int:
    """Return the column of the call that a frame is making, counted from 1."""
    if sys.version_info >= (3, 11):
        positions = list(frame.f_code.co_positions())
        return (positions[frame.f_lasti // 2][2] or 0) + 1
    return frame.f_lasti  # which also distinguishes two calls on one line
