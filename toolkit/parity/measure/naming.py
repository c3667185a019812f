"""Names of tensors and random draws that mean the same in both frameworks.

A draw is named after the module that asks for it: ``dropout:encoder.layers.0.attention.output``. A module that its
parent calls more than once, as a chunked feed-forward its halves, adds the call's number: ``...dense#2``. Calls are
counted within the parent's own call, so a block that runs again, as in a reversible backward, asks for the same names
again. A call whose name an earlier one has adds zeros: ``#1`` is the second call of a layer within its block's first,
``#1.0`` then the first within the block's second.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TensorName(NamedTuple):
    """The parts of a name, which is written ``KIND:MODULE CALL`` without the blank, or ``gradient:KIND:MODULE CALL``.

    Attributes:
        kind: ``output``, ``stream``, ``gradient``, ``updated`` (a parameter after an update), ``moment`` (the
            optimizer's of a parameter), ``accumulated`` (a parameter's gradient as an update is given it), ``trained``
            (what the forwards of an update are given of its examples), ``learning_rate``, ``dropout``, ``normal``,
            ``buckets``, ``logits``, ``loss``, or an operation such as ``scores``; of an
            evaluation, with its name before it: ``evaluation/output``.
        module: the path of the module or parameter; empty where it is of the whole model.
        call: which call of the module (``#1``), which draw within it (``@1``), which update (``#2``), or which of the
            two residual streams (``#attention``); empty for the first.
        into: for the gradient of an operation or output, its kind; empty for a parameter's.
    """

    kind: str
    module: str = ""
    call: str = ""
    into: str = ""

    @classmethod
    def parse(cls, text: str) -> TensorName:
        """Parse a name that ``str`` wrote."""
        return _parsed(text)

    def __str__(self) -> str:
        return ":".join(filter(None, (self.kind, self.into, self.module))) + self.call

    @property
    def is_of_training(self) -> bool:
        """Whether it belongs to the updates: their inputs, an updated parameter, or a later loss."""
        return self.kind in ("trained", "updated", "moment", "accumulated", "learning_rate") or (
            self.kind == "loss" and bool(self.call)
        )

    @property
    def evaluation(self) -> str:
        """Its evaluation (:mod:`.evaluation`); empty for a tensor of the step."""
        return self.kind.rpartition("/")[0]

    @property
    def in_its_run(self) -> TensorName:
        """The same without the evaluation's name."""
        return self._replace(kind=self.kind.rpartition("/")[2])


@functools.lru_cache(maxsize=2**16)
def _parsed(text: str) -> TensorName:
    """As :meth:`TensorName.parse`: a trial of all faults asks for each of a thousand names 500 times."""
    path, mark, call = re.fullmatch(r"([^#@]*)([#@]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    kind, _, module = path.partition(":")
    into = ""
    if kind == "gradient" and ":" in module:
        into, _, module = module.partition(":")
    return TensorName(kind, module, mark + call, into)


def is_gradient(name: str) -> bool:
    """Whether a name is that of a gradient."""
    return name.startswith("gradient:")


def append_number(name: str, number: int) -> str:
    """``name`` the first time, then ``name#2`` and so on, in a short training."""
    return name if number == 1 else f"{name}#{number}"


#: The running modules from the outermost to the innermost, each with its call number within its parent.
CallPath = tuple[tuple[str, int], ...]


@dataclass
class _Call:
    """A running module.

    Attributes:
        path: the calls that lead to it, its own last.
        number: suffix of its name after the module's name, such as ``#1``; empty for the first call.
        counts: how often it has called each child and asked for each kind of draw.
    """

    module: str
    path: CallPath = ()
    number: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class ModuleStack:
    """Which modules are running, innermost last."""

    def __init__(self) -> None:
        self._calls = [_Call("")]
        self._named_calls: dict[tuple[str, str], CallPath] = {}

    @property
    def module(self) -> str:
        """The path of the innermost module."""
        return self._calls[-1].module

    def called_as(self, names: Sequence[str]) -> str:
        """Path by which a shared module is about to run: the one within the running module, such as
        ``decoder.embed_tokens`` of an embedding shared with the encoder; else the first."""
        return next((name for name in names if name.rpartition(".")[0] == self.module), names[0])

    def enter(self, module: str) -> None:
        """Start ``module`` (its dotted path, "" for the model itself)."""
        path = (*self._calls[-1].path, (module, self.count(module)))
        self._calls.append(_Call(module, path, self._number(module, path)))

    def leave(self, kind: str = "output") -> str:
        """End the innermost module; return the name of its output."""
        name = self._name(kind)
        self._calls.pop()
        return str(name)

    def draw(self, kind: str) -> str:
        """Name of the next draw of ``kind`` (dropout, normal) by the innermost module, or of its next operation."""
        number, name = self.count(kind), self._name(kind)
        return str(name._replace(call=f"{name.call}@{number}") if number else name)

    def count(self, kind: str) -> int:
        """Count one more of ``kind`` in the innermost module; return the count before."""
        number = self._calls[-1].counts[kind]
        self._calls[-1].counts[kind] += 1
        return number

    def _name(self, kind: str) -> TensorName:
        return TensorName(kind, self.module, self._calls[-1].number)

    def _number(self, module: str, path: CallPath) -> str:
        """Return the suffix of a call's name after the module's name, and note the call that has this name.

        A block that a backward runs again lacks the calls around it, so its path is the end of the earlier path.
        """
        numbers = [str(number) for _, number in path if number]
        while True:
            suffix = f"#{'.'.join(numbers)}" if numbers else ""
            named_path = self._named_calls.setdefault((module, suffix), path)
            if named_path[-len(path) :] == path:
                return suffix
            numbers.append("0")
