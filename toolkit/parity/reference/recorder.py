"""Recording of a reference's run: the name and value of each random draw and each module output."""

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
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from toolkit.parity.exchange.tensor_file import SpilledTensors
from toolkit.parity.job.outputs import parts_of
from toolkit.parity.measure.naming import ModuleStack, TensorName
from toolkit.parity.reference.points import Keep, Points, to_numpy, values_of

#: Path endings of the modules that use dropout's result in other operations. In any other module, this result is the
#: module's output.
DROPS_WITHIN = ("self_attention", "feed_forward.dense")
#: Name of the attribute that records the padded length of packed sequences on their ``batch_sizes``. A recurrent layer
#: passes the same ``batch_sizes`` on to its output.
TOTAL_LENGTH = "total_length"


class Draws:
    """The random draws and discrete choices of R64 by name, which all later runs repeat.

    The first run makes each draw. In later runs, the same name returns the same values.

    Attributes:
        tensors: dropout masks and random numbers; LSH buckets with their margins; the signs of ReLU inputs
            (``relu:NAME``) with the inputs (``input:NAME``); chosen indices (``choice:NAME``) with their scores
            (``scores:NAME``).
        rates: dropout rate of each dropout mask, by the mask's name.
        moved: largest difference of a ReLU's inputs from R64's inputs in all runs so far, by module. Differences in
            float64 are scaled to the units of rounding of float32: unlike a difference in float32, they are not limited
            by the size of the inputs.
        moved_lowered: the same differences in runs in bfloat16, by module.
        choices_moved: largest difference of the scores of discrete choices from R64's scores, in the same units, by
            module.
        is_lowered: whether the current run is in bfloat16.

    Args:
        seed: seed of the draws.
        step: number of the run in :data:`.evaluation.RUNS`; each run has its own draws.
        is_spilled: whether the tensors are stored on disk.
    """

    def __init__(self, seed: int, step: int = 0, *, is_spilled: bool = False) -> None:
        self.seed = seed
        self.step = step
        self.tensors: dict[str, np.ndarray] | SpilledTensors = SpilledTensors() if is_spilled else {}
        self.rates: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        self.moved_lowered: dict[str, float] = {}
        self.choices_moved: dict[str, float] = {}
        self.is_lowered = False

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        """Return the dropout mask of a name: 1 for kept and 0 for dropped elements, uint8.

        Args:
            name: name of the draw, such as ``dropout:encoder.drop``.
            shape: shape of the mask.
            p: dropout rate.
        """
        if name not in self.tensors:
            self.tensors[name] = (self._generator(name).random(shape) >= p).astype(np.uint8)
            self.rates[name] = p
        return self.tensors[name]

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the standard normal numbers of a draw's name, float32, in the given shape."""
        if name not in self.tensors:
            self.tensors[name] = self._generator(name).standard_normal(shape).astype(np.float32)
        return self.tensors[name]

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the uniform numbers from 0 to 1 of a draw's name, float32, in the given shape."""
        if name not in self.tensors:
            self.tensors[name] = self._generator(name).random(shape, np.float32)
        return self.tensors[name]

    def positive(self, draw_name: TensorName, x: torch.Tensor) -> torch.Tensor:
        """Return the mask of a ReLU's inputs that are positive in R64, boolean.

        An input within rounding of 0 may have either sign in other runs, which would change a whole row of a gradient.

        Args:
            draw_name: name of the ReLU's signs.
            x: inputs of the ReLU in this run.
        """
        key, input_name = str(draw_name), str(draw_name._replace(kind="input"))
        module = draw_name.module + draw_name.call
        if key not in self.tensors:
            self.tensors[key] = (x > 0).numpy(force=True).astype(np.uint8)
            self.tensors[input_name] = x.detach().numpy(force=True)
        else:
            self._record_change(self.moved_lowered if self.is_lowered else self.moved, module, x, input_name)
        return torch.from_numpy(self.tensors[key]).to(x.device, torch.bool)

    def choose(
        self, draw_name: TensorName, scores: torch.Tensor, own: torch.Tensor, is_ordered: bool = True
    ) -> torch.Tensor:
        """Return the indices along the last axis that R64 chose, such as the indices of ``topk``.

        Args:
            draw_name: name of the choice.
            scores: scores of this run that decide about the choice, (..., n).
            own: indices that this run would choose, (..., k); R64 uses them.
            is_ordered: whether the order of the indices is part of the choice.
        """
        key, scores_name = str(draw_name), str(draw_name._replace(kind="scores"))
        if key not in self.tensors:
            self.tensors[key] = own.numpy(force=True).copy()
            self.tensors[scores_name] = scores.detach().numpy(force=True)
            if not is_ordered:
                self.tensors[str(draw_name._replace(kind="unordered"))] = np.ones(1, np.uint8)
        else:
            self._record_change(self.choices_moved, draw_name.module + draw_name.call, scores, scores_name)
        return torch.from_numpy(self.tensors[key]).to(own, copy=True)

    def multinomial(self, name: str, p: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        """Return ``count`` random indices along the last axis, with probabilities proportional to ``p``.

        Args:
            name: name of the draw.
            p: weights of the indices, (..., n).
            count: number of indices to draw.
            replacement: whether an index may be drawn several times.
        """
        if name not in self.tensors:
            shape = (*p.shape[:-1], count, p.shape[-1]) if replacement else tuple(p.shape)
            exponentials = self._generator(name).exponential(size=shape)
            with np.errstate(divide="ignore"):
                times = exponentials / p.detach().numpy(force=True)[(..., None, slice(None)) if replacement else ...]
            self.tensors[name] = times.argmin(-1) if replacement else times.argsort(-1)[..., :count].copy()
        return torch.from_numpy(self.tensors[name]).to(p.device, copy=True)

    def _record_change(self, changes: dict[str, float], module: str, x: torch.Tensor, name: str) -> None:
        """Update the largest change of a module by the difference of ``x`` from R64's tensor.

        Args:
            changes: largest changes by module, in units of rounding of float32.
            module: module whose change is updated.
            x: tensor of this run.
            name: name of R64's tensor in :attr:`tensors`.
        """
        true_x = torch.from_numpy(self.tensors[name]).to(x)
        difference = torch.where(x.detach() == true_x, 0.0, x.detach() - true_x)  # minus infinity equals itself
        units = torch.finfo(torch.float32).eps / torch.finfo(x.dtype).eps
        change = units * float(difference.abs().max()) if difference.numel() else 0.0
        changes[module] = max(changes.get(module, 0.0), math.inf if math.isnan(change) else change)

    def _generator(self, name: str) -> np.random.Generator:
        """Return the generator of a draw, which depends only on the seed, the run and the name."""
        digest = hashlib.sha256(f"{self.seed}:{self.step}:{name}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class Recorder:
    """Watches a run of a model: names its draws and outputs, and passes each output to ``keep``.

    Args:
        model: the reference model, or a part of it.
        draws: draws of the run.
        keep: called with the name and value of each output.
        prefix: dotted path of ``model`` in the whole model; empty for the whole model.
        embedding_module: path of the module whose output is the embedded input; its gradient is kept, too.
        points: points that the output of each module passes through (see :mod:`.points`).

    Attributes:
        stack: the running modules, which name draws and outputs.
        embedded_output: the embedded input, after the module ``embedding_module`` has run.
        recording: whether outputs are passed to ``keep``.
        unread: mask of the elements of each output that the loss does not depend on, by name: no gradient reaches them.
            An output that the model itself returns counts as unread. None if this is not recorded.
        read_beside: names of outputs with several tensors whose later tensors the loss depends on.
    """

    def __init__(
        self,
        model: nn.Module,
        draws: Draws,
        keep: Keep,
        prefix: str = "",
        embedding_module: str | None = None,
        points: Points | None = None,
    ) -> None:
        self.model = model
        self.draws = draws
        self.keep = keep
        self.prefix = prefix
        self.embedding_module = embedding_module
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
        """Inside the ``with`` block, record outputs with hooks, and replace torch's random functions by the draws."""
        undo = []
        paths: dict[nn.Module, list[str]] = {}
        for name, module in self.model.named_modules(prefix=self.prefix, remove_duplicate=False):
            paths.setdefault(module, []).append(name)
        for module, names in paths.items():
            name = names[0]
            undo.append(module.register_forward_pre_hook(self._make_pre_hook(names), with_kwargs=True).remove)
            undo.append(module.register_forward_hook(self._make_hook(name), always_call=True).remove)
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

    def pass_operation(self, operation: str, x: torch.Tensor) -> torch.Tensor:
        """Pass the result of an operation in the running module through the points, and return their replacement.

        Args:
            operation: kind of the operation, such as ``dropped``.
            x: result of the operation.
        """
        return x if self.points is None else self.points.pass_through(self.stack.next_name(operation), x)

    def _watch_reads(self, output_name: str, output: Any) -> None:
        """Register hooks that record in :attr:`unread` the elements of an output that get no gradient.

        Packed sequences have no padding, so padding counts as read.

        Args:
            output_name: name of the output.
            output: output of a module.
        """
        sequences = first_packed(output)
        tensor = first_tensor(output) if sequences is None else sequences.data
        if self.unread is None or tensor is None or not tensor.is_floating_point():
            return
        unread, self._own_outputs[output_name] = self.unread, weakref.ref(tensor)

        def note(is_unread: torch.Tensor) -> None:
            """Record the mask of the elements that the loss does not depend on."""
            if sequences is not None:
                is_unread = pad_packed(sequences._replace(data=is_unread.byte()))
            unread[output_name] = is_unread.bool().numpy(force=True)

        def note_gradient(gradient: torch.Tensor) -> None:
            """Record the elements of the output with a zero gradient, as a hook of the output's tensor."""
            if output_name in self._own_outputs:
                note(gradient == 0)

        def note_later_tensor(gradient: torch.Tensor) -> None:
            """Record that a later tensor of the output has a gradient, as a hook of this tensor."""
            if output_name in self._own_outputs and gradient.any():
                self.read_beside.add(output_name)

        for later_tensor in tensors_in(output):
            if later_tensor is not tensor and later_tensor.requires_grad:
                later_tensor.register_hook(note_later_tensor)
        note(torch.ones_like(tensor, dtype=torch.bool))
        if tensor.requires_grad:
            tensor.register_hook(note_gradient)

    def _exclude_returned(self, output: Any) -> None:
        """Keep the outputs that the model itself returns as unread, since its caller may use them in any way.

        Args:
            output: output of the whole model.
        """
        returned_memory = {one.untyped_storage().data_ptr() for one in tensors_in(output)}
        alive = {name: get_tensor() for name, get_tensor in self._own_outputs.items()}
        for name, tensor in alive.items():
            if tensor is not None and tensor.untyped_storage().data_ptr() in returned_memory:
                del self._own_outputs[name]

    def _values(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the values of a module's output as an array, without a copy if possible.

        If the tensor is the unchanged output of the previous module, often the last child, the result is the same array
        object, which :class:`.latest.LastMeasurement` recognizes.
        """
        if self._latest is None or self._latest[0] is not tensor or self._latest[1] != tensor._version:
            self._latest = tensor, tensor._version, values_of(tensor)
        return self._latest[2]

    def keep_embedded_gradient(self) -> None:
        """Pass the gradient of the embedded input to ``keep``, after the backward."""
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            self.keep(f"gradient:{self.embedding_module}", to_numpy(self.embedded_output.grad))

    def _make_pre_hook(self, names: Sequence[str]) -> Callable[[nn.Module, Any, Any], Any]:
        """Return a pre-hook that enters a module, known by these paths, and passes its input through the points."""

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
            """Enter the module, and return its arguments with the input passed through a point for the backward."""
            self.stack.enter(self.stack.choose_name(names))
            points = self.points
            if points is None:
                return None
            return with_input(args, kwargs, lambda x: points.pass_back(self.stack.next_name("input"), x))

        return hook

    def _make_hook(self, name: str) -> Callable[[nn.Module, Any, Any], Any]:
        """Return a forward hook that records the output of the module ``name``, and replaces it by the points."""

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            """Leave the module, keep its output, and return the replacement of the output, if there are points."""
            output_name = self.stack.leave()
            if output is None or not self.recording:
                return None
            tensor = first_tensor(output)
            if name == "":
                self._exclude_returned(output)
            if tensor is None or name == "":
                return None
            self._watch_reads(output_name, output)
            if name == self.embedding_module:
                self.embedded_output = tensor
                if tensor.requires_grad:
                    tensor.retain_grad()
            self.keep(output_name, self._values(tensor))
            if self.points is None or not has_replaceable_tensor(output):
                return None
            if (sequences := first_packed(output)) is not None:
                self.points.padding[output_name] = padding_of(sequences)
            return with_tensor(output, self.points.pass_through(output_name, tensor))

        return hook

    def _dropout(self, input, p=0.5, training=True, inplace=False, train=True):
        """Drop elements as torch's ``dropout`` does, with a recorded mask."""
        return self._apply_dropout(input, p, training and train, tuple(input.shape))

    def _dropout_of_channels(self, dimensions, input, p=0.5, training=True, inplace=False):
        """Drop whole channels, as torch's ``dropout1d``, ``dropout2d`` and ``dropout3d`` do, with a recorded mask.

        An input without one of the axes lacks the batch axis, except that for ``dropout2d`` it lacks the last axis.
        """
        num_mask_axes = 1 if dimensions != 2 and input.ndim == dimensions + 1 else 2
        mask_shape = tuple(input.shape[:num_mask_axes]) + (1,) * (input.ndim - num_mask_axes)
        return self._apply_dropout(input, p, training, mask_shape)

    def _apply_dropout(self, x, p, training, mask_shape):
        """Return ``x`` after dropout with the recorded mask of ``mask_shape``, in the running module."""
        if not training or p == 0.0:
            return x
        mask = self.draws.mask(self.stack.next_name("dropout"), mask_shape, p)
        result = x * (torch.from_numpy(mask).to(x) / (1.0 - p))
        return self.pass_operation("dropped", result) if self.stack.module.endswith(DROPS_WITHIN) else result

    def _relu(self, x):
        """Return the ReLU of ``x`` with R64's signs."""
        name = TensorName.parse(self.stack.next_name("relu"))
        return torch.where(self.draws.positive(name, x), x, torch.zeros_like(x))

    def _randn(self, *size, **options):
        """Return recorded normal numbers as the result of a call of ``torch.randn``."""
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


def requested_tensor(draw: np.ndarray, options: Mapping[str, Any]) -> torch.Tensor:
    """Return recorded numbers as the result of a call of a function such as ``torch.randn``.

    Args:
        draw: the recorded numbers, which are copied.
        options: keyword arguments of the call. ``dtype``, ``device``, ``out`` and ``requires_grad`` are used.
    """
    dtype = options.get("dtype") or torch.get_default_dtype()
    tensor = torch.from_numpy(np.asarray(draw)).to(options.get("device"), dtype, copy=True)
    if (out := options.get("out")) is not None:
        return out.resize_(tensor.shape).copy_(tensor)
    return tensor.requires_grad_(options.get("requires_grad", False))


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in an output of a module, at any depth of tuples, lists and mappings."""
    if isinstance(output, torch.Tensor):
        yield output
    else:
        for part in parts_of(output):
            yield from tensors_in(part)


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the tensor of a module's output that is compared: its first tensor, or None without a tensor.

    Packed sequences are returned as a padded tensor, (B, T, D), as Paddle's layers return them.
    """
    if isinstance(output, torch.Tensor):
        return output
    if (sequences := first_packed(output)) is not None:
        return pad_packed(sequences)
    return next((value for value in parts_of(output) if isinstance(value, torch.Tensor)), None)


def first_packed(output: Any) -> PackedSequence | None:
    """Return the packed sequences that are a module's output or its first part; None if there are none."""
    if isinstance(output, PackedSequence):
        return output
    first = next((value for value in parts_of(output) if isinstance(value, (torch.Tensor, PackedSequence))), None)
    return first if isinstance(first, PackedSequence) else None


def pad_packed(sequences: PackedSequence) -> torch.Tensor:
    """Return packed sequences as a tensor with zeros for padding, (B, T, D).

    T is the length that the sequences had before they were packed.
    """
    length = getattr(sequences.batch_sizes, TOTAL_LENGTH, None)
    return pad_packed_sequence(sequences, batch_first=True, total_length=length)[0]


def padding_of(sequences: PackedSequence) -> np.ndarray:
    """Return the mask of the padding that packed sequences get in :func:`pad_packed`, boolean, (B, T, D)."""
    return (pad_packed(sequences._replace(data=torch.ones_like(sequences.data))) == 0).numpy(force=True)


def packed_like(tensor: torch.Tensor, sequences: PackedSequence) -> PackedSequence:
    """Return a padded tensor as packed sequences with the lengths of other packed sequences.

    Args:
        tensor: padded sequences, (B, T, D).
        sequences: packed sequences with the lengths.
    """
    lengths = pad_packed_sequence(sequences, batch_first=True)[1]
    return sequences._replace(data=pack_padded_sequence(tensor, lengths, True, enforce_sorted=False).data)


@contextlib.contextmanager
def record_lengths() -> Iterator[None]:
    """Inside the ``with`` block, record the padded length of sequences when they are packed.

    The length becomes the attribute :data:`TOTAL_LENGTH` of the packed sequences' ``batch_sizes``.
    """
    pack = torch._VF._pack_padded_sequence

    def pack_and_note(tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple:
        """Pack sequences as torch does, and record their padded length on ``batch_sizes``."""
        data, batch_sizes = pack(tensor, lengths, batch_first)
        setattr(batch_sizes, TOTAL_LENGTH, tensor.shape[1 if batch_first else 0])
        return data, batch_sizes

    undo = set_attribute(torch._VF, "_pack_padded_sequence", pack_and_note)
    try:
        yield
    finally:
        undo()


def with_input(
    args: tuple, kwargs: dict[str, Any], change_input: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple, dict[str, Any]]:
    """Return a module's arguments with the first argument changed, if it is a tensor with a gradient.

    Other arguments that are the same tensor are changed, too: an attention may get its input as query, key and value.

    Args:
        args: positional arguments of the module.
        kwargs: keyword arguments of the module.
        change_input: returns the changed tensor, given the tensor.
    """
    first = next(iter((*args, *kwargs.values())), None)
    if not isinstance(first, torch.Tensor) or not first.requires_grad:
        return args, kwargs
    changed_first = change_input(first)
    changed_args = tuple(changed_first if one is first else one for one in args)
    return changed_args, {key: changed_first if one is first else one for key, one in kwargs.items()}


def with_tensor(output: Any, tensor: torch.Tensor) -> Any:
    """Return a module's output with its first tensor replaced.

    Args:
        output: output of the module.
        tensor: replacement; padded, (B, T, D), for packed sequences.
    """
    if isinstance(output, torch.Tensor):
        return tensor
    sequences = first_packed(output)
    tensor = tensor if sequences is None else packed_like(tensor, sequences)
    if sequences is output:
        return tensor
    return type(output)._make([tensor, *output[1:]]) if hasattr(output, "_make") else (tensor, *output[1:])


def has_replaceable_tensor(output: Any) -> bool:
    """Return whether :func:`with_tensor` can replace the first tensor of an output: a tensor or a tuple."""
    return isinstance(output, (torch.Tensor, tuple))


def set_attribute(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of an object, and return a function that restores the previous value.

    Args:
        owner: object, class or module with the attribute.
        name: name of the attribute.
        value: new value.
    """
    has_own, previous = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, previous) if has_own else delattr(owner, name)
