"""Record a run of the reference: every random draw and every output by name."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from toolkit.parity.job.outputs import parts_of
from toolkit.parity.job.tensor_file import SpilledTensors
from toolkit.parity.measure.naming import ModuleStack, TensorName
from toolkit.parity.reference.points import Keep, Points, to_numpy, values_of

#: Modules that compute on with dropout's result; any other module's output shows it.
DROPS_WITHIN = ("self_attention", "feed_forward.dense")


#: Attribute of packed sequences' ``batch_sizes``: their length with padding. A layer's output keeps ``batch_sizes``.
TOTAL_LENGTH = "total_length"


class Draws:
    """Every random draw and discrete choice of R64 by name: made once, then repeated.

    Attributes:
        tensors: dropout masks and rotations (from NumPy); LSH buckets with their margins; which inputs of a ReLU were
            positive (``relu:``), with the inputs (``input:``).
        rates: of the dropout masks.
        moved: largest difference of a ReLU's inputs from R64's in all runs so far: in float32, or in float64, scaled
            from its units of rounding to float32's. A float32 difference as large as the inputs stops growing, that of
            float64 does not.
        moved_lowered: the same for runs in bfloat16.
        choices_moved: as ``moved``, for the scores of discrete choices.
        is_lowered: whether the current run is in bfloat16.

    Args:
        step: of training; each has its own draws.
        spilled: keep the tensors on disk.
    """

    def __init__(self, seed: int, step: int = 0, spilled: bool = False) -> None:
        self.seed = seed
        self.step = step
        self.tensors: dict[str, np.ndarray] | SpilledTensors = SpilledTensors() if spilled else {}
        self.rates: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        self.moved_lowered: dict[str, float] = {}
        self.choices_moved: dict[str, float] = {}
        self.is_lowered = False

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        """Which cells are kept (1) and dropped (0), as uint8."""
        if name not in self.tensors:
            self.tensors[name] = (self._generator(name).random(shape) >= p).astype(np.uint8)
            self.rates[name] = p
        return self.tensors[name]

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers in float32."""
        if name not in self.tensors:
            self.tensors[name] = self._generator(name).standard_normal(shape).astype(np.float32)
        return self.tensors[name]

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers between 0 and 1 in float32."""
        if name not in self.tensors:
            self.tensors[name] = self._generator(name).random(shape, np.float32)
        return self.tensors[name]

    def positive(self, draw_name: TensorName, x: torch.Tensor) -> torch.Tensor:
        """Which inputs of a ReLU are positive in R64. An input within rounding of 0 may get either sign, which changes
        a whole row of a gradient."""
        key, given, module = str(draw_name), str(draw_name._replace(kind="input")), draw_name.module + draw_name.call
        if key not in self.tensors:
            self.tensors[key] = (x > 0).numpy(force=True).astype(np.uint8)
            self.tensors[given] = x.detach().numpy(force=True)
        else:
            self._note_moved(self.moved_lowered if self.is_lowered else self.moved, module, x, given)
        return torch.from_numpy(self.tensors[key]).to(x.device, torch.bool)

    def chosen(
        self, draw_name: TensorName, scores: torch.Tensor, own: torch.Tensor, is_ordered: bool = True
    ) -> torch.Tensor:
        """R64's choice of indices along the last axis of scores; R64 takes its ``own``.

        Args:
            is_ordered: whether the order of the indices is part of the choice.
        """
        key, given = str(draw_name), str(draw_name._replace(kind="scores"))
        if key not in self.tensors:
            self.tensors[key] = own.numpy(force=True).copy()
            self.tensors[given] = scores.detach().numpy(force=True)
            if not is_ordered:
                self.tensors[str(draw_name._replace(kind="unordered"))] = np.ones(1, np.uint8)
        else:
            self._note_moved(self.choices_moved, draw_name.module + draw_name.call, scores, given)
        return torch.from_numpy(self.tensors[key]).to(own, copy=True)

    def multinomial(self, name: str, p: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        """Draw ``count`` indices by the weights along the last axis: the smallest exponential numbers over weights."""
        if name not in self.tensors:
            shape = (*p.shape[:-1], count, p.shape[-1]) if replacement else tuple(p.shape)
            drawn = self._generator(name).exponential(size=shape)
            with np.errstate(divide="ignore"):
                times = drawn / p.detach().numpy(force=True)[(..., None, slice(None)) if replacement else ...]
            self.tensors[name] = times.argmin(-1) if replacement else times.argsort(-1)[..., :count].copy()
        return torch.from_numpy(self.tensors[name]).to(p.device, copy=True)

    def _note_moved(self, seen: dict[str, float], module: str, x: torch.Tensor, name: str) -> None:
        """Note how far ``x`` differs from its value in R64."""
        true = torch.from_numpy(self.tensors[name]).to(x)
        difference = torch.where(x.detach() == true, 0.0, x.detach() - true)  # minus infinity is no other than itself
        units = torch.finfo(torch.float32).eps / torch.finfo(x.dtype).eps
        by = units * float(difference.abs().max()) if difference.numel() else 0.0
        seen[module] = max(seen.get(module, 0.0), math.inf if math.isnan(by) else by)

    def _generator(self, name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}:{self.step}:{name}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class Recorder:
    """Watches one run of a module: names its draws and outputs, and hands each output to ``keep``.

    Args:
        model: the reference model, or a part of it.
        prefix: the path of ``model`` in the whole model; "" for the whole.
        embedded: the module whose output is the embedded input: its gradient is kept, too.
        points: those that every module's output passes through, if any (see :mod:`.points`).

    Attributes:
        unread: if a dict, the run enters each output by name, with the places where the loss does not depend on it: no
            gradient comes back there, or the model itself returns the output. None: this is not asked.
        read_beside: names of outputs of several tensors, of which the loss depends on another than the first.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        draws: Draws,
        keep: Keep,
        prefix: str = "",
        embedded: str | None = None,
        points: Points | None = None,
    ) -> None:
        self.model = model
        self.draws = draws
        self.keep = keep
        self.prefix = prefix
        self.embedded = embedded
        self.points = points
        self.embedded_output: torch.Tensor | None = None
        self.stack = ModuleStack()
        self.recording = True
        self.unread: dict[str, np.ndarray] | None = None
        self.read_beside: set[str] = set()
        self._own_outputs: dict[str, weakref.ref[torch.Tensor]] = {}
        self._latest: tuple[torch.Tensor, int, np.ndarray] | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Install hooks and injected draws inside the ``with`` block."""
        undo = []
        paths: dict[torch.nn.Module, list[str]] = {}
        for name, module in self.model.named_modules(prefix=self.prefix, remove_duplicate=False):
            paths.setdefault(module, []).append(name)
        for module, names in paths.items():
            name = names[0]
            undo.append(module.register_forward_pre_hook(self._entered(names), with_kwargs=True).remove)
            undo.append(module.register_forward_hook(self._left(name), always_call=True).remove)
            if isinstance(module, torch.nn.ReLU):
                undo.append(set_attribute(module, "forward", self._relu))
        functional = torch.nn.functional
        undo.append(set_attribute(functional, "dropout", self._dropout))
        for dimensions in (1, 2, 3):
            dropout_fn = functools.partial(self._dropout_of_channels, dimensions)
            undo.append(set_attribute(functional, f"dropout{dimensions}d", dropout_fn))
        undo.append(set_attribute(torch, "dropout", self._dropout))
        undo.append(set_attribute(torch, "randn", self._randn))
        try:
            yield
        finally:
            for restore in reversed(undo):
                restore()

    def at(self, operation: str, x: torch.Tensor) -> torch.Tensor:
        """Pass an operation's result in the running module through the points, if any."""
        return x if self.points is None else self.points.pass_through(self.stack.next_name(operation), x)

    def _note_read(self, output_name: str, output: Any) -> None:
        """Have the backward note which elements of an output get a gradient.

        Packed sequences have no padding, so padding counts as read.
        """
        sequences = first_packed(output)
        tensor = first_tensor(output) if sequences is None else sequences.data
        if self.unread is None or tensor is None or not tensor.is_floating_point():
            return
        unread, self._own_outputs[output_name] = self.unread, weakref.ref(tensor)

        def note(is_unread: torch.Tensor) -> None:
            if sequences is not None:
                is_unread = pad_packed(sequences._replace(data=is_unread.byte()))
            unread[output_name] = is_unread.bool().numpy(force=True)

        def note_gradient(gradient: torch.Tensor) -> None:
            if output_name in self._own_outputs:
                note(gradient == 0)

        def note_beside(gradient: torch.Tensor) -> None:
            if output_name in self._own_outputs and gradient.any():
                self.read_beside.add(output_name)

        for other in tensors_in(output):
            if other is not tensor and other.requires_grad:
                other.register_hook(note_beside)
        note(torch.ones_like(tensor, dtype=torch.bool))

        if tensor.requires_grad:
            tensor.register_hook(note_gradient)

    def _note_returned(self, output: Any) -> None:
        """Count the outputs that the model returns as unread: the caller may use them in any way."""
        returned_memory = {one.untyped_storage().data_ptr() for one in tensors_in(output)}
        alive = {name: get_tensor() for name, get_tensor in self._own_outputs.items()}
        for name, tensor in alive.items():
            if tensor is not None and tensor.untyped_storage().data_ptr() in returned_memory:
                del self._own_outputs[name]

    def _values(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the values of a module's output. If it is the unchanged output of the module before, often its last
        child, they are the same object, by which :class:`.latest.LastMeasurement` knows them."""
        if self._latest is None or self._latest[0] is not tensor or self._latest[1] != tensor._version:
            self._latest = tensor, tensor._version, values_of(tensor)
        return self._latest[2]

    def keep_embedded_gradient(self) -> None:
        """After the backward: hand on the gradient of the embedded input."""
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            self.keep(f"gradient:{self.embedded}", to_numpy(self.embedded_output.grad))

    def _entered(self, names: Sequence[str]) -> Callable[[torch.nn.Module, Any, Any], Any]:
        def hook(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
            self.stack.enter(self.stack.choose_name(names))
            points = self.points
            if points is None:
                return None
            return with_input(args, kwargs, lambda x: points.pass_back(self.stack.next_name("input"), x))

        return hook

    def _left(self, name: str) -> Callable[[torch.nn.Module, Any, Any], Any]:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
            called = self.stack.leave()
            if output is None or not self.recording:
                return None
            tensor = first_tensor(output)
            if name == "":
                self._note_returned(output)
            if tensor is None or name == "":
                return None
            self._note_read(called, output)
            if name == self.embedded:
                self.embedded_output = tensor
                if tensor.requires_grad:
                    tensor.retain_grad()
            self.keep(called, self._values(tensor))
            if self.points is None or not has_replaceable_tensor(output):
                return None
            if (sequences := first_packed(output)) is not None:
                self.points.padding[called] = padding_of(sequences)
            return with_tensor(output, self.points.pass_through(called, tensor))

        return hook

    def _dropout(self, input, p=0.5, training=True, inplace=False, train=True):
        return self._dropped(input, p, training and train, tuple(input.shape))

    def _dropout_of_channels(self, dimensions, input, p=0.5, training=True, inplace=False):
        """Drop whole channels; only ``dropout2d`` takes an input without a last dimension for one without a batch."""
        num_mask_axes = 1 if dimensions != 2 and input.ndim == dimensions + 1 else 2
        return self._dropped(
            input, p, training, tuple(input.shape[:num_mask_axes]) + (1,) * (input.ndim - num_mask_axes)
        )

    def _dropped(self, x, p, training, mask_shape):
        if not training or p == 0.0:
            return x
        mask = self.draws.mask(self.stack.next_name("dropout"), mask_shape, p)
        dropped = x * (torch.from_numpy(mask).to(x) / (1.0 - p))
        return self.at("dropped", dropped) if self.stack.module.endswith(DROPS_WITHIN) else dropped

    def _relu(self, x):
        return torch.where(
            self.draws.positive(TensorName.parse(self.stack.next_name("relu")), x), x, torch.zeros_like(x)
        )

    def _randn(self, *size, **options):
        shape = requested_shape(size, options)
        return requested_tensor(self.draws.normal(self.stack.next_name("normal"), shape), options)


def requested_shape(size: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape that a call of a function such as ``torch.randn`` requests.

    Args:
        size: positional arguments of the call: numbers, or one sequence of numbers.
        options: keyword arguments of the call; they may include ``size``.
    """
    size = options.get("size", size)
    if len(size) == 1 and isinstance(size[0], (list, tuple)):
        [size] = size
    return tuple(map(int, size))


def requested_tensor(values: np.ndarray, options: Mapping[str, Any]) -> torch.Tensor:
    """Return a copy of recorded values as a function such as ``torch.randn`` returns them.

    Args:
        options: keyword arguments of the call; ``dtype``, ``device``, ``out`` and ``requires_grad`` count.
    """
    dtype = options.get("dtype") or torch.get_default_dtype()
    tensor = torch.from_numpy(np.asarray(values)).to(options.get("device"), dtype, copy=True)
    if (out := options.get("out")) is not None:
        return out.resize_(tensor.shape).copy_(tensor)
    return tensor.requires_grad_(options.get("requires_grad", False))


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output, at any depth."""
    if isinstance(output, torch.Tensor):
        yield output
    else:
        for part in parts_of(output):
            yield from tensors_in(part)


def first_tensor(output: Any) -> torch.Tensor | None:
    """The tensor compared for a module's output: itself, or the first of a tuple or model output. Of packed sequences,
    it is the padded one that Paddle's layers return, (B, T, D)."""
    if isinstance(output, torch.Tensor):
        return output
    if (sequences := first_packed(output)) is not None:
        return pad_packed(sequences)
    return next((value for value in parts_of(output) if isinstance(value, torch.Tensor)), None)


def first_packed(output: Any) -> PackedSequence | None:
    """Return the packed sequences that an output is, or that come first in it; None if there are none."""
    if isinstance(output, PackedSequence):
        return output
    first = next((value for value in parts_of(output) if isinstance(value, (torch.Tensor, PackedSequence))), None)
    return first if isinstance(first, PackedSequence) else None


def pad_packed(sequences: PackedSequence) -> torch.Tensor:
    """Return packed sequences as a tensor with zeros for padding, (B, T, D), as long as before they were packed."""
    length = getattr(sequences.batch_sizes, TOTAL_LENGTH, None)
    return pad_packed_sequence(sequences, batch_first=True, total_length=length)[0]


def padding_of(sequences: PackedSequence) -> np.ndarray:
    """Return which elements of packed sequences are padding once they are padded, boolean, (B, T, D)."""
    return (pad_packed(sequences._replace(data=torch.ones_like(sequences.data))) == 0).numpy(force=True)


def packed_like(tensor: torch.Tensor, sequences: PackedSequence) -> PackedSequence:
    """Return a padded tensor packed as other sequences are (:func:`pad_packed`)."""
    lengths = pad_packed_sequence(sequences, batch_first=True)[1]
    return sequences._replace(data=pack_padded_sequence(tensor, lengths, True, enforce_sorted=False).data)


@contextlib.contextmanager
def noted_lengths() -> Iterator[None]:
    """Inside the ``with`` block, packed sequences note how long they were before, padding included."""
    pack = torch._VF._pack_padded_sequence

    def pack_and_note(tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple:
        data, batch_sizes = pack(tensor, lengths, batch_first)
        setattr(batch_sizes, TOTAL_LENGTH, tensor.shape[1 if batch_first else 0])
        return data, batch_sizes

    undo = set_attribute(torch._VF, "_pack_padded_sequence", pack_and_note)
    try:
        yield
    finally:
        undo()


def with_input(
    args: tuple, kwargs: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple, dict[str, Any]]:
    """Change a module's first argument wherever it is given, if that is a tensor with a gradient: an attention may get
    its input as query, key and value."""
    first = next(iter((*args, *kwargs.values())), None)
    if not isinstance(first, torch.Tensor) or not first.requires_grad:
        return args, kwargs
    changed = change(first)
    given = tuple(changed if one is first else one for one in args)
    return given, {key: changed if one is first else one for key, one in kwargs.items()}


def with_tensor(output: Any, tensor: torch.Tensor) -> Any:
    """A module's output with its first tensor replaced."""
    if isinstance(output, torch.Tensor):
        return tensor
    sequences = first_packed(output)
    tensor = tensor if sequences is None else packed_like(tensor, sequences)
    if sequences is output:
        return tensor
    return type(output)._make([tensor, *output[1:]]) if hasattr(output, "_make") else (tensor, *output[1:])


def has_replaceable_tensor(output: Any) -> bool:
    """Whether :func:`with_tensor` can replace it: not in a model's own output class, whose tensor is a module's."""
    return isinstance(output, (torch.Tensor, tuple))


def set_attribute(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute; returns a function that undoes it."""
    had, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before) if had else delattr(owner, name)
