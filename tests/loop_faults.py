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


ROWS = "for row in range(first, last):"
DROPPED = "if args[16]:\n    _drop(grads, args[16] + own * width, scale, size * width)"
ACROSS = "for i in range(width):"
SHARE = "return length * thread // threads, length * (thread + 1) // threads"

FAULTS = {
    # Who does what.
    "shares leave the last of each thread": Fault("keep", "_share", SHARE, SHARE + " - np.int64(thread + 1 < threads)"),
    "shares overlap by one": Fault(
        "keep",
        "_share",
        SHARE,
        "return length * thread // threads - np.int64(thread > 0), length * (thread + 1) // threads",
    ),
    "uneven shares leave rows over": Fault(
        "layer_norm", "_share", SHARE, "return length // threads * thread, length // threads * (thread + 1)"
    ),
    "a share runs beyond the end": Fault(
        "keys", "_share", SHARE, "return -(-length // threads) * thread, -(-length // threads) * (thread + 1)"
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
    "one of four cells has the rate of its neighbours in 2^16": Fault(
        "random_mask", "draw_mask", "(z >> np.uint64(48)) >= threshold", "(z >> np.uint64(48)) > threshold"
    ),
    "there are 2^16 masks": Fault(
        "random_mask", "random_mask", '.view("int64")[0])', '.view("int64")[0]) & 0xFFFF', "compiled"
    ),
    "a seed of half the bits": Fault("random_mask", "random_mask", '.view("int64")[0])', "[0])", "compiled"),
    # Elements.
    "the last of eight are not dropped": Fault("keep", "keep", "range(count)", "range(count - count % 8)"),
    "numbers below -1 go through": Fault(
        "relu", "rectify", "decides[i] <= np.float32(0.0)", "-1.0 < decides[i] <= 0.0"
    ),
    "a gradient goes through where it is positive": Fault("relu_backward", "rectify", "if decides[i]", "if x[i]"),
    "the last block of squares is as long as others": Fault(
        "square_sums", "square_sums", "min(BLOCK_COLUMNS, numbers - block * BLOCK_COLUMNS)", "BLOCK_COLUMNS"
    ),
    "the last of four are not updated": Fault("adamw_", "adamw", "range(count)", "range(count // 4 * 4)"),
    "a tensor's squares are put where the first's are": Fault(
        "square_sums", "square_sums", "begin + block, 1)", "block, 1)"
    ),
    "a tensor behind others begins where they do": Fault("square_sums", "_within", "max(first - begin, 0)", "first"),
    # AdamW.
    "the first moment takes nothing in": Fault("adamw_", "adamw", "rest1 * clipped", "rest1 * mean[i]"),
    "epsilon is not corrected with the second moment": Fault(
        "adamw_", "adamw", "np.float32(_scalar(args[3]) * root)", "np.float32(_scalar(args[3]))"
    ),
    "the first moment is not corrected": Fault(
        "adamw_", "adamw", "(1.0 - np.float64(_floats(own[4], 0, 1)[0]))", "1.0"
    ),
    "a gradient is clipped for the first moment alone": Fault(
        "adamw_", "adamw", "(clipped * clipped)", "(grad[i] * grad[i])"
    ),
    "decay has no rate": Fault("adamw_", "adamw", "rate * _scalar(own[8])", "_scalar(own[8])"),
    "powers stay as they are": Fault("adamw_", "adamw", "[0] *= beta2", "[0] *= beta2 / beta2"),
    "all parameters have the first's rate": Fault("adamw_", "adamw", "_scalar(own[7])", "_scalar(of[13])"),
    "columns beyond 1,024 have no bias": Fault("add_row_", "add_row", ACROSS, "for i in range(min(width, 1024)):"),
    "an odd number is left": Fault("add_on_grid", "add_on_grid", "range(count)", "range(count - count % 2)"),
    "a stream is read before it is added to": Fault(
        "add_on_grid", "add_on_grid", "np.float32(total)", "np.float32(exact[i])"
    ),
    "a stream adds in float32": Fault(
        "add_on_grid", "add_on_grid", "total = exact[i]", "total = np.float64(np.float32(exact[i]))"
    ),
    "a stream always adds": Fault("add_on_grid", "add_on_grid", "sign * (", "("),
    # The position table.
    "all examples have the first's factors": Fault(
        "scale_columns", "scale_columns", "row // positions * columns + position", "position"
    ),
    "columns beyond 1,024 begin again": Fault(
        "scale_columns", "scale_columns", "position % columns", "position % columns % 1024"
    ),
    "the first example has no gradient": Fault(
        "scale_columns_backward", "scale_columns_backward", "range(batch)", "range(1, batch)"
    ),
    "a sum begins with what lies in memory": Fault(
        "scale_columns_backward", "scale_columns_backward", "out[i] = np.float32(0.0)", "pass"
    ),
    # Layer norm.
    "rows beyond 2,048 are left": Fault("layer_norm", "_norm", ROWS, "for row in range(first, min(last, 2048)):"),
    "rows beyond 2,048 are normed as the 2,049th": Fault(
        "layer_norm", "_norm", "_floats(x, row * width", "_floats(x, min(row, 2048) * width"
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
        "layer_norm_backward", "norm_rows_backward", "of_bias[i] = np.float32(0.0)", "pass"
    ),
    "a gain's gradient is that of the last row": Fault(
        "layer_norm_backward", "norm_rows_backward", "of_gain[i] += grad", "of_gain[i] = grad"
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
        "softmax", "_exp", "x = LEAST if x < LEAST else x", "x = np.float32(-87.0) if x < np.float32(-87.0) else x"
    ),
    "the largest of negative scores is the smallest": Fault(
        "softmax", "_largest", "_turned(_bits(row[i]))", "_bits(row[i])"
    ),
    "the last column is not divided": Fault(
        "softmax",
        "_exponentiate",
        "for i in range(width):\n    row[i] *= share",
        "for i in range(width - 1):\n    row[i] *= share",
    ),
    "a saturated row's mean is not corrected": Fault(
        "softmax_backward", "_softmax_gradient", "left += (grad[i] - mean) * weights[i]", "left += np.float32(0.0)"
    ),
    "scores are not divided": Fault("softmax", "softmax_rows", "scores[i] / divisor", "scores[i]"),
    "all texts have the first's bias": Fault("softmax", "softmax_rows", "row // group * queries + row", "row"),
    "a head's rows go on in the bias": Fault(
        "softmax", "softmax_rows", "row % queries) * width", "row % group) * width"
    ),
    "a gradient is not divided": Fault("softmax_backward", "softmax_rows_backward", "out[i] /= divisor", "pass"),
    # Attention of chunks.
    "exp is two terms short in attention": Fault(
        "attend_chunks", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"
    ),
    "the normaliser is of what is below the largest": Fault(
        "attend_chunks", "_weigh", "largest + math.log(total)", "math.log(total)"
    ),
    "padding counts": Fault("attend_chunks", "_weigh", "= HIGHEST", "= LOWEST"),
    "padding is that of the first ring": Fault(
        "attend_chunks", "_weigh", "not _bytes(args[5], begin + i", "not _bytes(args[5], begin - first + i"
    ),
    "what comes later is seen": Fault("attend_chunks", "_weigh", "place if causal else LOWEST", "LOWEST"),
    "places are those of the first ring": Fault(
        "attend_chunks", "_weigh", "_integers(args[4], begin + i", "_integers(args[4], begin - first + i"
    ),
    "a place sees itself": Fault("attend_chunks", "_put_where_masked", "if args[13]:", "if args[13] and width < 0:"),
    "padding in its own place is padding": Fault(
        "attend_chunks", "_put_where_masked", "places[i] == place", "places[i] == place and hidden_from[i] <= place"
    ),
    "the first part is added to what lies in memory": Fault("attend_chunks", "attend_chunks", "part > 0", "True"),
    "the last of several parts replaces the others": Fault("attend_chunks", "attend_chunks", "part > 0", "False"),
    "dropout does not scale": Fault("attend_chunks", "_drop", "scale if drawn[i]", "np.float32(1.0) if drawn[i]"),
    "dropout of the first chunk is everyone's": Fault(
        "attend_chunks", "attend_chunks", "args[16] + own * width", "args[16]"
    ),
    "the normaliser has no gradient": Fault(
        "attend_chunks_backward", "_softmax_gradient", "- left) + beside)", "- left))"
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
        "attend_chunks_backward", "attend_chunks_backward", "width, np.float32(0.0), ", "width, of_row[0], "
    ),
    "a place's score for itself has a gradient": Fault(
        "attend_chunks_backward",
        "attend_chunks_backward",
        "np.float32(0.0), np.float32(0.0))",
        "np.float32(0.0), beside)",
    ),
    "keys' gradients begin with what lies in memory": Fault(
        "attend_chunks_backward", "attend_chunks_backward", "(args[21], args[22])", "(args[22], args[22])"
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
    "a normaliser is that of the last block": Fault(
        "cross_entropy", "cross_entropy_rows", "normaliser[1] = np.float32(total)", "normaliser[1] = part"
    ),
    "a label's gradient is not added": Fault(
        "cross_entropy_backward", "cross_entropy_rows_backward", "[0]] -= grad", "[0]] = -grad"
    ),
    "a row without a gradient keeps what lies in memory": Fault(
        "cross_entropy_backward", "cross_entropy_rows_backward", "out[i] = np.float32(0.0)", "pass"
    ),
    "exp is two terms short behind a cross entropy": Fault(
        "cross_entropy_backward", "_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"
    ),
    # Buckets and keys.
    "the last of several largest": Fault("nearest_axes", "_nearest_axis", "row[i] > row[most]", "row[i] >= row[most]"),
    "the first axis is left": Fault("nearest_axes", "_nearest_axis", "width), 0, 0", "width), 1 % width, 0"),
    "a negative axis before a positive one": Fault(
        "nearest_axes", "_nearest_axis", "row[most] >= -row[least]", "row[most] > -row[least]"
    ),
    "keys have no epsilon": Fault("keys", "key_rows", "np.float32(width) + epsilon", "np.float32(width)"),
    "keys are of unit length": Fault("keys", "key_rows", "squares / np.float32(width)", "squares"),
    "a key's gradient is not taken along": Fault(
        "keys_backward", "key_rows_backward", "along /= np.float32(width) * mean_square", "along /= np.float32(width)"
    ),
    "gradients of keys beyond 2,048 are the 2,049th's": Fault(
        "keys_backward", "key_rows_backward", "_floats(args[1], row * width", "_floats(args[1], min(row, 2048) * width"
    ),
}

#: Of a decoder at one position.
DECODER_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "the last rows of a weight are left": ("decoder_step", "_map", "range(whole, inner)", "range(whole, whole)"),
    "a second text has the first's weights' rows": (
        "decoder_step",
        "_map",
        "_floats(x, row * inner + begin, 8)",
        "_floats(x, begin, 8)",
    ),
    "a map has no bias": ("decoder_step", "_map", "biases[i] if bias else np.float32(0.0)", "np.float32(0.0)"),
    "nothing is added to what a layer maps": (
        "decoder_step",
        "_map",
        "total[i] += others[i]",
        "total[i] += np.float32(0.0)",
    ),
    "a position does not see itself at once": (
        "decoder_step",
        "decoder_step",
        "keys + 4 * (positions - 1)",
        "keys + 4 * max(positions - 2, 0)",
    ),
    "all texts have the first's masks": ("decoder_step", "decoder_step", "head // heads * positions", "0"),
    "scores over the root of one more": ("decoder_step", "decoder_step", "np.float32(depth)", "np.float32(depth + 1)"),
    "layers' first norms have no epsilon": (
        "decoder_step",
        "decoder_step",
        "of[3], normed, rows, width, epsilon",
        "of[3], normed, rows, width, np.float32(0.0)",
    ),
    "layers' second norms have no epsilon": (
        "decoder_step",
        "_feed_forward",
        "of[3], normed, rows, width, epsilon",
        "of[3], normed, rows, width, np.float32(0.0)",
    ),
    "half of a row is scored": ("decoder_step", "_score", "for i in range(width):", "for i in range(width // 2 + 1):"),
    "classes have no bias": ("decoder_step", "_score", "total + biases[name]", "total"),
    "embeddings are not scaled": ("decoder_step", "_embed", "own[i] * scale", "own[i]"),
    "all texts have the first's token": (
        "decoder_step",
        "_embed",
        "_integers(tokens, row, 1)",
        "_integers(tokens, 0, 1)",
    ),
    "a position has its predecessor's place": (
        "decoder_step",
        "decoder_step",
        "args[3] + 4 * (positions - 1)",
        "args[3] + 4 * max(positions - 2, 0)",
    ),
    "the last norm has the layers' epsilon": (
        "decoder_step",
        "decoder_step",
        "np.float32(_scalar(args[18]))",
        "epsilon",
    ),
    "each layer has the first's weights": ("decoder_step", "decoder_step", "18 * layer", "0 * layer"),
    # Of two streams.
    "a feed-forward is added to attention's stream": (
        "reversible_step",
        "_feed_forward",
        "hidden, of[6], of[7], streams[1]",
        "hidden, of[6], of[7], streams[0]",
    ),
    "streams change places for the last norm": (
        "reversible_step",
        "reversible_step",
        "streams[which] + 4 * row",
        "streams[1 - which] + 4 * row",
    ),
    "each layer of two streams has the first's weights": (
        "reversible_step",
        "reversible_step",
        "23 * layer",
        "0 * layer",
    ),
    "a shared key is of unit length": ("reversible_step", "_put_key", "squares / np.float32(depth)", "squares"),
    "a shared key has no epsilon": ("reversible_step", "_put_key", "np.float32(depth) + epsilon", "np.float32(depth)"),
    "a key of its own has mean square 1, too": ("reversible_step", "_put_key", "if shared:", "if depth:"),
    "all factors have the first's axes": ("reversible_step", "_bucket", "rotated + 4 * below", "rotated"),
    "a second factor counts as the first": ("reversible_step", "_bucket", "bucket += count *", "bucket +="),
    "rounds have buckets in common": ("reversible_step", "_bucket", "bucket + turn * count", "bucket"),
    "all rounds have the first's rotations": (
        "reversible_step",
        "reversible_step",
        "depth * rounds + which) * axes",
        "depth * rounds) * axes",
    ),
    "all heads have the first's rotations": ("reversible_step", "reversible_step", "head % heads * depth", "0 * depth"),
    "a position is sorted before those of its bucket": (
        "reversible_step",
        "_sort_in",
        "buckets[positions - 1], positions - 1)",
        "buckets[positions - 1] - 1, positions - 1)",
    ),
    "a position stands where the first of its bucket does": (
        "reversible_step",
        "_see",
        "own[positions - 1], positions) - 1",
        "own[positions - 1] - 1, positions)",
    ),
    "the ring of chunks is open": ("reversible_step", "_see", "(chunk + step) % ring", "max(chunk + step, 0)"),
    "chunks before are not seen": ("reversible_step", "_see", "range(-before, 1)", "range(0, 1)"),
    "a position of padding is seen": (
        "reversible_step",
        "_see",
        "slot % padded < positions",
        "slot % padded <= positions",
    ),
    "each round is a ring of its own": ("reversible_step", "_see", "rounds + slot // padded", "rounds + which"),
    "all rounds begin where the first does": ("reversible_step", "_see", "which * padded + place", "place"),
    "a position sees itself in LSH attention": (
        "reversible_step",
        "_see",
        "for_itself if position == positions - 1 else",
        "",
    ),
    "a position does not see itself in local attention": (
        "reversible_step",
        "reversible_step",
        "np.float32(0.0) if own_key else self_masked",
        "self_masked",
    ),
    "the first keys are seen": (
        "reversible_step",
        "_attend",
        "_floats(keys, (places[which] if seen else which) * depth",
        "_floats(keys, which * depth",
    ),
    "the first values are seen": (
        "reversible_step",
        "_attend",
        "_floats(values, (places[which] if seen else which) * depth",
        "_floats(values, which * depth",
    ),
}
FAULTS |= {name: Fault(*of, file="decoder_loops") for name, of in DECODER_FAULTS.items()}
