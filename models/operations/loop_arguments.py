"""Arguments of the compiled loops: names, dtypes and shapes, each declared once.

Both sides of a call are generated from the declaration. :meth:`Fields.pack` checks and allocates tensors, and packs
their addresses into 64-bit numbers. :func:`models.operations.loops.emit_assembly` compiles the code that unpacks these
numbers into the parameters of the loop. This module does not import Numba.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import paddle

#: Arguments of each loop, and fields of the records in the tables of some loops. A field is an array, such as
#: ``out: float32[rows, width]``; a number, such as ``scale: float32``; or a table, such as ``layers: decoder_layer``.
#: ``?`` marks an array that a call may leave out. A loop sees bool as uint8.
DECLARATIONS = """
draw_mask(mask: bool[cells]; seed, threshold: int64)
keep(x, out: float32[numbers]; keep_mask: bool[numbers]; scale: float32)
rectify(x, gate, out: float32[numbers])
squared_tensor(x: float32[numbers])
square_sums(sums: float64[blocks]; tensors: squared_tensor)
adamw_parameter(weight, gradient, first_moment, second_moment: float32[numbers]; beta1_power, beta2_power: float32[1];
    rate, decay: float64)
adamw(beta1, beta2, factor: float32; epsilon: float64; parameters: adamw_parameter)
add_row(x: float32[rows, width]; row: float32[width])
scale_columns(table: float32[rows, columns, width]; factors: float32[batch, columns];
    out: float32[batch, rows, columns, width])
scale_columns_backward(grad: float32[batch, rows, columns, width]; factors: float32[batch, columns];
    out: float32[rows, columns, width])
gather_rows(x: float32[source_rows, width]; index: int64[rounds, rows]; out: float32[rows, width])
norm_rows(x, out: float32[rows, width]; gain, bias: float32[width]; epsilon: float32)
norm_rows_backward(grad, x, out: float32[rows, width]; gain: float32[width]; sums: float32[blocks, 2, width];
    epsilon: float32)
add_on_grid(exact, out: float64[numbers]; update, rounded_out: float32[numbers]; rounder, sign: float64)
softmax_rows(scores, out: float32[rows, width]; bias?: float32[groups, queries, width]; divisor: float32)
softmax_rows_backward(grad, probabilities, out: float32[rows, width]; divisor: float32)
cross_entropy_rows(logits: float32[rows, classes]; labels: int64[rows]; losses: float32[rows];
    normalizers: float32[rows, 2])
cross_entropy_rows_backward(grad: float32[rows]; logits, out: float32[rows, classes]; labels: int64[rows];
    normalizers: float32[rows, 2])
key_rows(x, out: float32[rows, width]; epsilon, factor: float32)
key_rows_backward(grad, x, out: float32[rows, width]; epsilon, factor: float32)
nearest_axes(x: float32[rows, width]; out: int64[rows])
attend_chunks(query, key, value, out: float32[rings, chunks, size, depth]; order: int64[chunks, parts];
    positions?: int64[rings, chunks, size]; token_mask?: bool[rings, chunks, size]; is_causal, hides_itself: int64;
    masked_score, own_score: float32; keep_mask?: bool[rings, chunks, size, keys]; rate: float64;
    log_normalizer?: float32[rings, chunks, size, 1])
attend_chunks_backward(query, key, value, grad, grad_query, grad_key, grad_value: float32[rings, chunks, size, depth];
    order: int64[chunks, parts]; positions?: int64[rings, chunks, size]; token_mask?: bool[rings, chunks, size];
    is_causal, hides_itself: int64; masked_score, own_score: float32; keep_mask?: bool[rings, chunks, size, keys];
    rate: float64; log_normalizer?, grad_log_normalizer?: float32[rings, chunks, size, 1])
decoder_layer(keys, values: float32[rows, heads, capacity, depth]; norm_gain, norm_bias: float32[width];
    query_weight: float32[width, width]; query_bias: float32[width]; key_weight: float32[width, width];
    key_bias: float32[width]; value_weight: float32[width, width]; value_bias: float32[width];
    dense_weight: float32[width, width]; dense_bias?: float32[width]; norm2_gain, norm2_bias: float32[width];
    inner_weight: float32[width, inner]; inner_bias?: float32[inner]; outer_weight: float32[inner, width];
    outer_bias?: float32[width])
decoder_step(tokens: int64[rows]; embedding: float32[vocabulary, width]; position_table: float32[max_positions, width];
    score_bias?: float32[rows, positions]; norm_gain, norm_bias: float32[width]; head_weight: float32[classes, width];
    head_bias: float32[classes]; out: float32[rows, classes]; stream, normed, context: float32[rows, width];
    projections: float32[3, rows, width]; hidden: float32[rows, inner]; scores: float32[rows, heads, positions];
    epsilon, last_epsilon: float32; layers: decoder_layer)
reversible_layer(keys, values: float32[rows, heads, capacity, depth];
    buckets?, order?: int64[rows, heads, rounds, capacity]; rotations?: float32[heads, depth, rounds, axes];
    factors?: int64[num_factors]; chunk_length, chunks_before: int64; norm_gain, norm_bias: float32[width];
    query_weight, key_weight?, value_weight: float32[width, attention_width];
    dense_weight: float32[attention_width, width]; dense_bias?: float32[width]; norm2_gain, norm2_bias: float32[width];
    inner_weight: float32[width, inner]; inner_bias?: float32[inner]; outer_weight: float32[inner, width];
    outer_bias?: float32[width])
reversible_step(tokens: int64[rows]; embedding: float32[vocabulary, width]; position: float32[width];
    norm_gain, norm_bias: float32[joined_width]; head_weight: float32[joined_width, classes];
    head_bias: float32[classes]; out: float32[rows, classes]; streams, next_streams: float32[2, rows, width];
    normed: float32[rows, width]; query, value, context: float32[rows, attention_width]; hidden: float32[rows, inner];
    joined, normed_joined: float32[rows, joined_width]; num_positions, padded_length, max_visible, max_axes: int64;
    epsilon, key_epsilon, own_score: float32; layers: reversible_layer)
"""
DTYPES = {"float32": paddle.float32, "float64": paddle.float64, "int64": paddle.int64, "bool": paddle.bool}
#: Format of a number for :mod:`struct`.
_FORMATS = {"float32": "d", "float64": "d", "int64": "q", "bool": "q"}


class Field(NamedTuple):
    """A contiguous array, a number or a table.

    Attributes:
        dtype: key of :data:`DTYPES`, or name of the records of a table.
        shape: name or size of each axis of an array, otherwise empty. The first axis stands for all leading axes of a
            tensor, however many.
        is_optional: whether a call may leave out an array, whose address is then 0.
    """

    dtype: str
    shape: tuple[str | int, ...]
    is_optional: bool


class Fields:
    """The named arguments of a loop, or the named fields of each record of a table.

    Packed, they are 64-bit numbers: the size of each named axis, then the address of each array, the bits of each
    number, and the address and length of each table.

    Args:
        declaration: the part of a declaration between the parentheses.

    Attributes:
        by_name: fields by name.
        axes: names of the axes of all arrays.
        num_packed: number of 64-bit numbers.
    """

    def __init__(self, declaration: str) -> None:
        self.by_name: dict[str, Field] = {}
        for names, dtype, axes in re.findall(r"([\w?, ]+): (\w+)(?:\[([\w, ]+)\])?", declaration):
            shape = tuple(int(axis) if axis.isdigit() else axis for axis in axes.replace(",", " ").split())
            for name in names.replace(",", " ").split():
                self.by_name[name.rstrip("?")] = Field(dtype, shape, name.endswith("?"))
        fields = self.by_name.values()
        self.axes = tuple({axis: None for field in fields for axis in field.shape if isinstance(axis, str)})
        self.num_packed = len(self.axes) + sum(len(_FORMATS.get(field.dtype, "qq")) for field in fields)
        # Calls are frequent, so all that does not depend on the arguments is computed here.
        formats = ["q" if field.shape else _FORMATS.get(field.dtype, "qq") for field in fields]
        self._struct = struct.Struct("".join(["q" * len(self.axes), *formats]))
        self._numeric_axes: dict[str | int, int] = {
            axis: axis for field in fields for axis in field.shape if isinstance(axis, int)
        }
        self._arrays = [(name, field, DTYPES[field.dtype]) for name, field in self.by_name.items() if field.shape]
        self._similar = {
            name: [other for other, of_other, _ in self._arrays if of_other == field] for name, field, _ in self._arrays
        }

    def pack(self, values: Mapping[str, Any]) -> tuple[bytes, dict[str, paddle.Tensor]]:
        """Check arguments and pack them.

        An array without a tensor is allocated, with the shape of the first tensor that has the same declaration, or
        with the sizes of its axes. The size of an axis is 1 if no argument has it.

        Args:
            values: a tensor, number or :class:`Table` for each field, by name; sizes of axes that no tensor has.

        Returns:
            The packed arguments; and the tensors, by name, which must live as long as these.

        Raises:
            ValueError: a tensor does not have the declared dtype and shape, or two tensors disagree about an axis.
        """
        sizes = self._numeric_axes | {axis: values[axis] for axis in self.axes if axis in values}
        tensors: dict[str, paddle.Tensor] = {}
        for name, field, dtype in self._arrays:
            tensor = values.get(name)
            if tensor is not None:
                tensors[name] = tensor.contiguous()
                shape, rank = tensor.shape, len(field.shape)
                if len(shape) != rank:
                    shape = [math.prod(shape[: 1 - rank or None]), *shape[len(shape) - rank + 1 :]]
                # The identity is 10 times faster to check than the equality, and is almost always there.
                is_correct = len(shape) == rank and (tensor.dtype is dtype or tensor.dtype == dtype)
                for axis, size in zip(field.shape, shape, strict=False):
                    is_correct = is_correct and sizes.setdefault(axis, size) == size
                if not is_correct:
                    axes = ", ".join(
                        f"{axis}={sizes[axis]}" if sizes.get(axis, axis) != axis else str(axis) for axis in field.shape
                    )
                    actual = f"{tensor.dtype} {list(tensor.shape)}"
                    raise ValueError(f"{name} is {actual}; the loop needs {field.dtype} ({axes})")
        numbers: list[Any] = [sizes.get(axis, 1) for axis in self.axes]
        for name, field in self.by_name.items():
            if field.shape:
                if name not in tensors and not field.is_optional:
                    similar = next((tensors[other].shape for other in self._similar[name] if other in tensors), None)
                    tensors[name] = paddle.empty(similar or [sizes[axis] for axis in field.shape], field.dtype)
                numbers.append(tensors[name].data_ptr() if name in tensors else 0)
            elif field.dtype in DTYPES:
                numbers.append(values[name])
            else:
                numbers += [values[name].address, values[name].num_records]
        return self._struct.pack(*numbers), tensors


#: Fields of each declaration, by its name.
DECLARED = {name: Fields(fields) for name, fields in re.findall(r"(\w+)\(([^)]*)\)", DECLARATIONS)}


class Table:
    """Packed records, such as one for each layer of a decoder; no tensor of a record may be replaced.

    Args:
        name: name of the records in :data:`DECLARED`.
        records: arguments of each record, in the order of its fields.

    Attributes:
        address: memory address of the packed records.
        num_records: number of records.
    """

    def __init__(self, name: str, records: Iterable[Sequence[Any]]) -> None:
        fields = DECLARED[name]
        self._packed_records = [fields.pack(dict(zip(fields.by_name, record, strict=True))) for record in records]
        self._content = ctypes.create_string_buffer(b"".join(content for content, _ in self._packed_records))
        self.address, self.num_records = ctypes.addressof(self._content), len(self._packed_records)
