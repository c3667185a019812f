"""Wrong versions of the compiled loops, each of which a test of their sizes must see."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.parity.mutants.edits import SourceEdit


@dataclass(frozen=True)
class Fault:
    """An edit of a file of :mod:`models.operations`, and a function of ``compiled`` that it makes wrong."""

    function: str
    where: str
    removed: str
    added: str
    file: str = "loops"

    @property
    def edit(self) -> SourceEdit:
        return SourceEdit(f"models.operations.{self.file}:{self.where}", self.removed, self.added)


ROWS = "for row in _own_rows(rows):"
DROPPED = "if call.has_keep_mask:\n    _apply_dropout(grads, call.keep_mask[ring, chunk], call.rate)"
ACROSS = "for i in range(width):"
SHARE = "return length * thread // threads, length * (thread + 1) // threads"

FAULTS = {
    # Who does what.
    "shares leave the last of each thread": Fault(
        "keep", "_own_share", SHARE, SHARE + " - np.int64(thread + 1 < threads)"
    ),
    "shares overlap by one": Fault(
        "keep",
        "_own_share",
        SHARE,
        "return length * thread // threads - np.int64(thread > 0), length * (thread + 1) // threads",
    ),
    "uneven shares leave rows over": Fault(
        "layer_norm", "_own_share", SHARE, "return length // threads * thread, length // threads * (thread + 1)"
    ),
    "a share runs beyond the end": Fault(
        "keys", "_own_share", SHARE, "return -(-length // threads) * thread, -(-length // threads) * (thread + 1)"
    ),
    # Random masks.
    "every thread's stream begins alike": Fault(
        "random_mask", "draw_mask", "np.uint64(first + 1) * GAMMA", "np.uint64(1) * GAMMA"
    ),
    "streams overlap by a word": Fault(
        "random_mask", "draw_mask", "np.uint64(first + 1)", "np.uint64(first + np.int64(first == 0))"
    ),
    "the last cells repeat the last word": Fault(
        "random_mask", "draw_mask", "np.uint64(words + 1) * GAMMA", "np.uint64(words) * GAMMA"
    ),
    "the last cells are drawn by one thread alone": Fault(
        "random_mask", "draw_mask", "if last == words:", "if last == words and first == 0:"
    ),
    "one of four cells has the rate of its neighbors in 2^16": Fault(
        "random_mask", "draw_mask", "(z >> np.uint64(48)) >= threshold", "(z >> np.uint64(48)) > threshold"
    ),
    "there are 2^16 masks": Fault(
        "random_mask", "random_mask", '.view("int64")[0])', '.view("int64")[0]) & 0xFFFF', "compiled"
    ),
    "a seed of half the bits": Fault("random_mask", "random_mask", '.view("int64")[0])', "[0])", "compiled"),
    # Elements.
    "the last of eight are not dropped": Fault("keep", "keep", "range(last - first)", "range((last - first) // 8 * 8)"),
    "numbers below -1 go through": Fault("relu", "rectify", "gate[i] <= np.float32(0.0)", "-1.0 < gate[i] <= 0.0"),
    "a gradient goes through where it is positive": Fault("relu_backward", "rectify", "if gate[i]", "if x[i]"),
    "the last block of squares is as long as others": Fault(
        "square_sums", "square_sums", "min(BLOCK_COLUMNS, numbers - block * BLOCK_COLUMNS)", "BLOCK_COLUMNS"
    ),
    "the last of four are not updated": Fault("adamw_", "adamw", "range(end - start)", "range((end - start) // 4 * 4)"),
    "a tensor's squares are put where the first's are": Fault(
        "square_sums", "square_sums", "sums[begin + block]", "sums[block]"
    ),
    "a tensor behind others begins where they do": Fault("square_sums", "_overlap", "max(first - begin, 0)", "first"),
    # AdamW.
    "the first moment takes nothing in": Fault("adamw_", "adamw", "rest1 * clipped", "rest1 * mean[i]"),
    "epsilon is not corrected with the second moment": Fault(
        "adamw_", "adamw", "np.float32(epsilon * root)", "np.float32(epsilon)"
    ),
    "the first moment is not corrected": Fault(
        "adamw_", "adamw", "(1.0 - np.float64(parameter.beta1_power[0]))", "1.0"
    ),
    "a gradient is clipped for the first moment alone": Fault(
        "adamw_", "adamw", "(clipped * clipped)", "(grad[i] * grad[i])"
    ),
    "decay has no rate": Fault("adamw_", "adamw", "rate * parameter.decay", "parameter.decay"),
    "powers stay as they are": Fault("adamw_", "adamw", "[0] *= beta2", "[0] *= beta2 / beta2"),
    "all parameters have the first's rate": Fault(
        "adamw_", "adamw", "own_epsilon = parameter.rate", "own_epsilon = _read_parameter(parameters[0]).rate"
    ),
    "columns beyond 1,024 have no bias": Fault("add_row_", "add_row", ACROSS, "for i in range(min(width, 1024)):"),
    "an odd number is left": Fault(
        "add_on_grid", "add_on_grid", "range(last - first)", "range((last - first) // 2 * 2)"
    ),
    "a stream is read before it is added to": Fault(
        "add_on_grid", "add_on_grid", "np.float32(total)", "np.float32(exact[i])"
    ),
    "a stream adds in float32": Fault(
        "add_on_grid", "add_on_grid", "total = exact[i]", "total = np.float64(np.float32(exact[i]))"
    ),
    "a stream always adds": Fault("add_on_grid", "add_on_grid", "sign * (", "("),
    # The position table.
    "all examples have the first's factors": Fault(
        "scale_columns", "scale_columns", "factors[example, column]", "factors[0, column]"
    ),
    "columns beyond 1,024 begin again": Fault(
        "scale_columns", "scale_columns", "factors[example, column]", "factors[example, column % 1024]"
    ),
    "the first example has no gradient": Fault(
        "scale_columns_backward", "scale_columns_backward", "range(batch)", "range(1, batch)"
    ),
    "a sum begins with what lies in memory": Fault(
        "scale_columns_backward", "scale_columns_backward", "out_row[:] = np.float32(0.0)", "pass"
    ),
    # Layer norm.
    "rows beyond 2,048 are left": Fault(
        "layer_norm", "_normalize_rows", ROWS, "for row in _own_rows(min(rows, 2048)):"
    ),
    "rows beyond 2,048 are normed as the 2,049th": Fault(
        "layer_norm", "_normalize_rows", "x_row, out_row = x[row]", "x_row, out_row = x[min(row, 2048)]"
    ),
    "variance in one pass": Fault(
        "layer_norm", "_mean_and_scale", "(row[i] - mean) * (row[i] - mean)", "row[i] * row[i] - mean * mean"
    ),
    "epsilon beside the root": Fault(
        "layer_norm",
        "_mean_and_scale",
        "math.sqrt(squares / np.float32(width) + epsilon)",
        "(math.sqrt(squares / np.float32(width)) + epsilon)",
    ),
    "the variance of a sample": Fault(
        "layer_norm", "_mean_and_scale", "squares / np.float32(width)", "squares / np.float32(max(width - 1, 1))"
    ),
    "variance in one pass on the way back": Fault(
        "layer_norm_backward", "_mean_and_scale", "(row[i] - mean) * (row[i] - mean)", "row[i] * row[i] - mean * mean"
    ),
    "the last row of an uneven block is left": Fault(
        "layer_norm_backward",
        "norm_rows_backward",
        "min(rows, (block + 1) * BLOCK_ROWS)",
        "min(rows - rows % BLOCK_ROWS % 2, (block + 1) * BLOCK_ROWS)",
    ),
    "a bias's gradient begins with what lies in memory": Fault(
        "layer_norm_backward", "norm_rows_backward", "grad_bias[:] = np.float32(0.0)", "pass"
    ),
    "a gain's gradient is that of the last row": Fault(
        "layer_norm_backward", "norm_rows_backward", "grad_gain[i] += grad_row", "grad_gain[i] = grad_row"
    ),
    "a gradient goes on before its mean is taken off": Fault(
        "layer_norm_backward", "norm_rows_backward", "- total - normed", "- normed"
    ),
    "rows of the last block alone are summed": Fault(
        "layer_norm_backward",
        "layer_norm_backward",
        "blocks = -(-rows // kernels.BLOCK_ROWS)",
        "blocks = max(1, rows // kernels.BLOCK_ROWS)",
        "compiled",
    ),
    # Softmax.
    "exp is two terms short": Fault("softmax", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"),
    "exp ends at -87": Fault(
        "softmax",
        "_exp",
        "x = MIN_EXPONENT if x < MIN_EXPONENT else x",
        "x = np.float32(-87.0) if x < np.float32(-87.0) else x",
    ),
    "the largest of negative scores is the smallest": Fault(
        "softmax", "_largest", "_swap_order(_bits_of_float32(row[i]))", "_bits_of_float32(row[i])"
    ),
    "the last column is not divided": Fault(
        "softmax",
        "_softmax_in_place",
        "for i in range(width):\n    row[i] *= share",
        "for i in range(width - 1):\n    row[i] *= share",
    ),
    "a saturated row's mean is not corrected": Fault(
        "softmax_backward",
        "_softmax_gradient",
        "correction += (grad[i] - mean) * weights[i]",
        "correction += np.float32(0.0)",
    ),
    "scores are not divided": Fault("softmax", "softmax_rows", "score_row[i] / divisor", "score_row[i]"),
    "all texts have the first's bias": Fault("softmax", "softmax_rows", "bias[row // rows_of_group, ", "bias[0, "),
    "a head's rows go on in the bias": Fault("softmax", "softmax_rows", "row % queries]", "row % rows_of_group]"),
    "a gradient is not divided": Fault("softmax_backward", "softmax_rows_backward", "out_row[i] /= divisor", "pass"),
    # Attention of chunks.
    "exp is two terms short in attention": Fault(
        "attend_chunks", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"
    ),
    "the normalizer is of what is below the largest": Fault(
        "attend_chunks", "_weigh_keys", "largest + math.log(total)", "math.log(total)"
    ),
    "padding counts": Fault("attend_chunks", "_weigh_keys", "= MAX_INT32", "= MIN_INT32"),
    "padding is that of the first ring": Fault("attend_chunks", "_weigh_keys", "token_mask[ring, ", "token_mask[0, "),
    "what comes later is seen": Fault(
        "attend_chunks", "_weigh_keys", "position if call.is_causal else MIN_INT32", "MIN_INT32"
    ),
    "places are those of the first ring": Fault("attend_chunks", "_position", "positions[ring, ", "positions[0, "),
    "a place sees itself": Fault(
        "attend_chunks", "_mask_row", "if call.hides_itself and", "if call.hides_itself and row.shape[0] < 0 and"
    ),
    "padding in its own place is padding": Fault(
        "attend_chunks",
        "_mask_row",
        "key_positions[i] == position",
        "key_positions[i] == position and hidden_until[i] <= position",
    ),
    "the first part is added to what lies in memory": Fault("attend_chunks", "attend_chunks", "part > 0", "True"),
    "the last of several parts replaces the others": Fault("attend_chunks", "attend_chunks", "part > 0", "False"),
    "dropout does not scale": Fault(
        "attend_chunks", "_apply_dropout", "scale if mask_row[i]", "np.float32(1.0) if mask_row[i]"
    ),
    "dropout of the first chunk is everyone's": Fault(
        "attend_chunks", "attend_chunks", "keep_mask[ring, chunk]", "keep_mask[0, 0]"
    ),
    "the normalizer has no gradient": Fault(
        "attend_chunks_backward", "_softmax_gradient", "- correction) + grad_log_normalizer)", "- correction))"
    ),
    "a gradient is not dropped": Fault(
        "attend_chunks_backward",
        "attend_chunks_backward",
        f"{DROPPED}\nfor row",
        "for row",
    ),
    "values' gradients are those of weights before dropout": Fault(
        "attend_chunks_backward",
        "attend_chunks_backward",
        f"{DROPPED}\nfor part",
        "for part",
    ),
    "masked scores have a gradient": Fault(
        "attend_chunks_backward", "attend_chunks_backward", "row_grad, zero, zero)", "row_grad, row_grad[0], zero)"
    ),
    "a place's score for itself has a gradient": Fault(
        "attend_chunks_backward",
        "attend_chunks_backward",
        "row_grad, zero, zero)",
        "row_grad, zero, from_normalizer)",
    ),
    "keys' gradients begin with what lies in memory": Fault(
        "attend_chunks_backward",
        "attend_chunks_backward",
        "call.grad_key[ring][:] = zero",
        "pass",
    ),
    # Cross entropy.
    "the last block of columns is left": Fault(
        "cross_entropy",
        "cross_entropy_rows",
        "range(0, width, BLOCK_COLUMNS)",
        "range(0, max(1, width - width % BLOCK_COLUMNS), BLOCK_COLUMNS)",
    ),
    "each block of columns is one short": Fault(
        "cross_entropy",
        "cross_entropy_rows",
        "min(width, begin + BLOCK_COLUMNS)",
        "min(width, begin + BLOCK_COLUMNS - 1)",
    ),
    "exp is two terms short in a cross entropy": Fault(
        "cross_entropy", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"
    ),
    "a normalizer is that of the last block": Fault(
        "cross_entropy",
        "cross_entropy_rows",
        "normalizers[row, 1] = np.float32(total)",
        "normalizers[row, 1] = block_sum",
    ),
    "a label's gradient is not added": Fault(
        "cross_entropy_backward",
        "cross_entropy_rows_backward",
        "[labels[row]] -= row_grad",
        "[labels[row]] = -row_grad",
    ),
    "a row without a gradient keeps what lies in memory": Fault(
        "cross_entropy_backward", "cross_entropy_rows_backward", "out_row[:] = np.float32(0.0)", "pass"
    ),
    "exp is two terms short behind a cross entropy": Fault(
        "cross_entropy_backward", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"
    ),
    # Buckets and keys.
    "the last of several largest": Fault(
        "nearest_axes", "_nearest_axis", "row[i] > row[highest]", "row[i] >= row[highest]"
    ),
    "the first axis is left": Fault(
        "nearest_axes", "_nearest_axis", "row.shape[0], 0, 0", "row.shape[0], 1 % row.shape[0], 0"
    ),
    "a negative axis before a positive one": Fault(
        "nearest_axes", "_nearest_axis", "row[highest] >= -row[lowest]", "row[highest] > -row[lowest]"
    ),
    "keys have no epsilon": Fault("keys", "key_rows", "np.float32(width) + epsilon", "np.float32(width)"),
    "keys are of unit length": Fault("keys", "key_rows", "squares / np.float32(width)", "squares"),
    "a key's gradient is not taken along": Fault(
        "keys_backward",
        "key_rows_backward",
        "projection /= np.float32(width) * mean_square",
        "projection /= np.float32(width)",
    ),
    "gradients of keys beyond 2,048 are the 2,049th's": Fault(
        "keys_backward", "key_rows_backward", "out_row = grad[row]", "out_row = grad[min(row, 2048)]"
    ),
}

#: Of a decoder at one position.
DECODER_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "the last rows of a weight are left": ("decoder_step", "_map_rows", "range(whole, inner)", "range(whole, whole)"),
    "a second text has the first's weights' rows": (
        "decoder_step",
        "_map_rows",
        "_four_numbers(x[row], begin) +",
        "_four_numbers(x[0], begin) +",
    ),
    "a map has no bias": (
        "decoder_step",
        "_map_rows",
        "own_bias[i] if has_bias else np.float32(0.0)",
        "np.float32(0.0)",
    ),
    "nothing is added to what a layer maps": (
        "decoder_step",
        "_map_rows",
        "total[i] += own_residual[i]",
        "total[i] += np.float32(0.0)",
    ),
    "a position does not see itself at once": (
        "decoder_step",
        "decoder_step",
        "keys[last_position]",
        "keys[max(last_position - 1, 0)]",
    ),
    "all texts have the first's masks": ("decoder_step", "decoder_step", "score_bias[row]", "score_bias[0]"),
    "scores over the root of one more": ("decoder_step", "decoder_step", "np.float32(depth)", "np.float32(depth + 1)"),
    "layers' first norms have no epsilon": (
        "decoder_step",
        "decoder_step",
        "layer.norm_bias, normed, call.epsilon",
        "layer.norm_bias, normed, np.float32(0.0)",
    ),
    "layers' second norms have no epsilon": (
        "decoder_step",
        "_feed_forward",
        "layer.norm2_bias, normalized, epsilon",
        "layer.norm2_bias, normalized, np.float32(0.0)",
    ),
    "half of a row is scored": (
        "decoder_step",
        "_score_classes",
        "for i in range(width):",
        "for i in range(width // 2 + 1):",
    ),
    "classes have no bias": ("decoder_step", "_score_classes", "total + bias[label]", "total"),
    "embeddings are not scaled": ("decoder_step", "_embed_tokens", "token_vector[i] * scale", "token_vector[i]"),
    "all texts have the first's token": (
        "decoder_step",
        "_embed_tokens",
        "tokens[row]",
        "tokens[0]",
    ),
    "a position has its predecessor's place": (
        "decoder_step",
        "decoder_step",
        "position_table[last_position]",
        "position_table[max(last_position - 1, 0)]",
    ),
    "the last norm has the layers' epsilon": (
        "decoder_step",
        "decoder_step",
        "normed, call.last_epsilon",
        "normed, call.epsilon",
    ),
    "each layer has the first's weights": ("decoder_step", "decoder_step", "layers[index]", "layers[0]"),
    # Of two streams.
    "a feed-forward is added to attention's stream": (
        "reversible_step",
        "_feed_forward",
        "streams[1], True",
        "streams[0], True",
    ),
    "streams change places for the last norm": (
        "reversible_step",
        "reversible_step",
        "streams[0, row], joined[row, :width])\n_copy_vector(streams[1, row]",
        "streams[1, row], joined[row, :width])\n_copy_vector(streams[0, row]",
    ),
    "each layer of two streams has the first's weights": (
        "reversible_step",
        "reversible_step",
        "layers[index]",
        "layers[0]",
    ),
    "a shared key is of unit length": ("reversible_step", "_write_key", "squares / np.float32(depth)", "squares"),
    "a shared key has no epsilon": (
        "reversible_step",
        "_write_key",
        "np.float32(depth) + epsilon",
        "np.float32(depth)",
    ),
    "a key of its own has mean square 1, too": ("reversible_step", "_write_key", "if is_shared:", "if depth:"),
    "all factors have the first's axes": (
        "reversible_step",
        "_hash_vector",
        "rotated[begin : begin + factor // 2]",
        "rotated[: factor // 2]",
    ),
    "a second factor counts as the first": ("reversible_step", "_hash_vector", "bucket += count *", "bucket +="),
    "rounds have buckets in common": ("reversible_step", "_hash_vector", "bucket + turn * count", "bucket"),
    "all rounds have the first's rotations": (
        "reversible_step",
        "_hash_vector",
        "rotations[j, turn]",
        "rotations[j, 0]",
    ),
    "all heads have the first's rotations": (
        "reversible_step",
        "reversible_step",
        "layer.rotations[head]",
        "layer.rotations[0]",
    ),
    "a position is sorted before those of its bucket": (
        "reversible_step",
        "_insert_sorted",
        "buckets[position], position)",
        "buckets[position] - 1, position)",
    ),
    "a position stands where the first of its bucket does": (
        "reversible_step",
        "_list_visible",
        "buckets[positions - 1], positions) - 1",
        "buckets[positions - 1] - 1, positions)",
    ),
    "the ring of chunks is open": ("reversible_step", "_list_visible", "(chunk + step) % ring", "max(chunk + step, 0)"),
    "chunks before are not seen": ("reversible_step", "_list_visible", "range(-layer.chunks_before, 1)", "range(0, 1)"),
    "a position of padding is seen": (
        "reversible_step",
        "_list_visible",
        "slot % padded_length < positions",
        "slot % padded_length <= positions",
    ),
    "each round is a ring of its own": (
        "reversible_step",
        "_list_visible",
        "slot // padded_length, position",
        "turn, position",
    ),
    "all rounds begin where the first does": (
        "reversible_step",
        "_list_visible",
        "turn * padded_length + rank",
        "rank",
    ),
    "a position sees itself in LSH attention": (
        "reversible_step",
        "_list_visible",
        "own_score if position == positions - 1 else",
        "",
    ),
    "a position does not see itself in local attention": (
        "reversible_step",
        "reversible_step",
        "own_score if is_shared else zero",
        "own_score",
    ),
    "the first keys are seen": (
        "reversible_step",
        "_attend",
        "keys[positions[index] if has_positions else index]",
        "keys[index]",
    ),
    "the first values are seen": (
        "reversible_step",
        "_attend",
        "values[positions[index] if has_positions else index]",
        "values[index]",
    ),
}
FAULTS |= {name: Fault(*of, file="decoder_loops") for name, of in DECODER_FAULTS.items()}
