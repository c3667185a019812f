"""Names of tensors and random draws that mean the same in both frameworks.

A draw is named after the module that requests it: ``dropout:encoder.layers.0.attention.output``. If the parent calls a
module several times, such as the layers of a chunked feed-forward, the number of the call is added: ``...dense#2``.
Calls are counted within the parent's own call. So a block that runs again, as in a reversible backward, requests the
same names again. Zeros are added to a name that an earlier call has: if ``#1`` is the second call of a layer within the
first call of its block, ``#1.0`` is the first call of the layer within the second call of the block.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TensorName(NamedTuple):
    """The parts of a tensor's name, written ``KIND:MODULE`` or ``gradient:KIND:MODULE``, each with the call's suffix.

    Attributes:
        kind: ``output``, ``stream``, ``gradient``, ``updated`` (a parameter after an update), ``moment`` (the
            optimizer's moment of a parameter), ``accumulated`` (a parameter's gradient that an update receives),
            ``trained`` (an input of an update's forwards), ``learning_rate``, ``dropout``, ``normal``, ``buckets``,
            ``logits``, ``loss``, or an operation such as ``scores``. A tensor of an evaluation has the evaluation's
            name before its kind: ``evaluation/output``.
        module: dotted path of the module or parameter; empty for the whole model.
        call: number of the module's call (``#1``), of the draw within it (``@1``) or of the update (``#2``), or one of
            the two residual streams (``#attention``); empty for the first.
        gradient_of: kind of the operation or output whose gradient this is; empty for a parameter's gradient.
    """

    kind: str
    module: str = ""
    call: str = ""
    gradient_of: str = ""

    @classmethod
    def parse(cls, text: str) -> TensorName:
        """Return the parts of a name, given its text, such as ``dropout:encoder.layers.0#1``."""
        return _parse_name(text)

    def __str__(self) -> str:
        """Return the text of the name, such as ``dropout:encoder.layers.0#1``."""
        return ":".join(filter(None, (self.kind, self.gradient_of, self.module))) + self.call

    @property
    def is_of_training(self) -> bool:
        """Whether the tensor belongs to the optimizer's updates: an input, an updated parameter or a later loss."""
        return self.kind in ("trained", "updated", "moment", "accumulated", "learning_rate") or (
            self.kind == "loss" and bool(self.call)
        )

    @property
    def evaluation(self) -> str:
        """The name of the tensor's evaluation, such as ``shorter``; empty for a tensor of the step.

        The evaluations are in :mod:`.evaluation`.
        """
        return self.kind.rpartition("/")[0]

    @property
    def without_run(self) -> TensorName:
        """This name without the evaluation's name: ``shorter/logits`` -> ``logits``."""
        return self._replace(kind=self.kind.rpartition("/")[2])


@functools.lru_cache(maxsize=2**16)
def _parse_name(text: str) -> TensorName:
    """Return the parts of a name, as :meth:`TensorName.parse` does."""
    # Cached: a trial of all faults parses each of a thousand names 500 times.
    kind_and_module, mark, call = re.fullmatch(r"([^#@]*)([#@]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    kind, _, module = kind_and_module.partition(":")
    gradient_of = ""
    if kind == "gradient" and ":" in module:
        gradient_of, _, module = module.partition(":")
    return TensorName(kind, module, mark + call, gradient_of)


def is_gradient(name: str) -> bool:
    """Return whether a name is the name of a gradient."""
    return name.startswith("gradient:")


def append_number(name: str, number: int) -> str:
    """Return the name of a later update or call: ``name#2``, ``name#3`` and so on; ``name`` for the number 1."""
    return name if number == 1 else f"{name}#{number}"


#: The running modules from the outermost to the innermost, each with its call number within its parent.
CallPath = tuple[tuple[str, int], ...]


@dataclass
class _Call:
    """A call of a module that is still running.

    Attributes:
        module: dotted path of the module.
        path: the calls from the outermost module to this call.
        number: suffix of the call's name after the module's name, such as ``#1``; empty for the first call.
        counts: number of the calls of each child, and of the draws of each kind, so far.
    """

    module: str
    path: CallPath = ()
    number: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class ModuleStack:
    """The modules that are running, the innermost last, which names their outputs, draws and operations."""

    def __init__(self) -> None:
        self._calls = [_Call("")]
        self._named_calls: dict[tuple[str, str], CallPath] = {}

    @property
    def module(self) -> str:
        """The dotted path of the innermost module."""
        return self._calls[-1].module

    def choose_name(self, names: Sequence[str]) -> str:
        """Return the name that the next call of a module has if the model registers the module under several names.

        This is the name within the running module, otherwise the first. For example, an embedding that encoder and
        decoder share is ``decoder.embed_tokens`` while the decoder runs.

        Args:
            names: dotted names of the module.
        """
        return next((name for name in names if name.rpartition(".")[0] == self.module), names[0])

    def enter(self, module: str) -> None:
        """Record the start of a module, given its dotted path; the path of the model itself is empty."""
        path = (*self._calls[-1].path, (module, self.count(module)))
        self._calls.append(_Call(module, path, self._number(module, path)))

    def leave(self, kind: str = "output") -> str:
        """Record the end of the innermost module, and return the name of its output.

        Example: ``output:encoder.layers.0#1``.

        Args:
            kind: kind of the returned name.
        """
        name = self._name(kind)
        self._calls.pop()
        return str(name)

    def next_name(self, kind: str) -> str:
        """Return the name of the innermost module's next draw or operation of a kind.

        Example: ``dropout:encoder.layers.0``, then ``dropout:encoder.layers.0@1``.

        Args:
            kind: kind of the draw (``dropout``, ``normal``) or of the operation.
        """
        number, name = self.count(kind), self._name(kind)
        return str(name._replace(call=f"{name.call}@{number}") if number else name)

    def count(self, kind: str) -> int:
        """Increment the innermost module's count of this kind, and return the previous count."""
        number = self._calls[-1].counts[kind]
        self._calls[-1].counts[kind] += 1
        return number

    def _name(self, kind: str) -> TensorName:
        """Return the name of a tensor of this kind in the innermost module's call."""
        return TensorName(kind, self.module, self._calls[-1].number)

    def _number(self, module: str, call_path: CallPath) -> str:
        """Return the suffix of a call's name after the module's path, such as ``#1``, and record the name as used.

        A block that a backward runs again lacks the calls around it, so its path is the end of the earlier path.

        Args:
            module: dotted path of the module.
            call_path: the calls from the outermost module to this call.
        """
        numbers = [str(number) for _, number in call_path if number]
        while True:
            suffix = f"#{'.'.join(numbers)}" if numbers else ""
            named_path = self._named_calls.setdefault((module, suffix), call_path)
            if named_path[-len(call_path) :] == call_path:
                return suffix
            numbers.append("0")
