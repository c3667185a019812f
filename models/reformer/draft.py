"""Configuration of a small, randomly initialized Reformer that `toolkit recipe new` proposes."""

from __future__ import annotations

from typing import Any

#: Length of an attention chunk, in positions.
CHUNK_LENGTH = 64
#: Maximum number of later chunks that the first position attends to.
MAX_CHUNKS_AFTER = 7

#: A configuration key, its value, and a comment.
Line = tuple[str, Any, str]


def config_lines(head: str, length: int, num_rows: int) -> list[Line]:
    """Return the proposed keys, each with its value and comment.

    Args:
        head: head of the model, such as ``sequence_classification``.
        length: number of tokens of a padded text.
        num_rows: number of rows of the training data.
    """
    if head == "sequence_classification":
        num_chunks_after = min(MAX_CHUNKS_AFTER, max(1, -(-length // CHUNK_LENGTH) - 1))
        return [
            ("attn_layers", ["local", "lsh"], "kind of attention, from the first layer to the last"),
            *_size_lines(64 if num_rows < 300 else 128, CHUNK_LENGTH),
            ("local_num_chunks_before", 1, "... and the chunks before them"),
            (
                "local_num_chunks_after",
                num_chunks_after,
                "... and after: the classification head reads position 0, so look ahead",
            ),
            *_dropout_lines(0.1 if num_rows < 20_000 else 0.0),
        ]
    if head == "token_classification":
        return [
            ("attn_layers", ["local", "lsh"], "kind of attention, from the first layer to the last"),
            *_size_lines(128, 16, 0.1),
            ("local_num_chunks_before", 1, "... and the chunks before them"),
            ("local_num_chunks_after", 1, "... and after"),
            *_dropout_lines(0.1),
        ]
    return [
        ("attn_layers", ["lsh", "local", "lsh", "local"], "LSH finds the question's words, local reads beside them"),
        *_size_lines(128, 16),
        ("local_num_chunks_before", 1, "... and the chunks before them"),
        ("local_num_chunks_after", 1, "... and after"),
        *_dropout_lines(0.0),
    ]


def _size_lines(width: int, local_chunk_length: int, axial_norm_std: float = 0.02) -> list[Line]:
    """Return the lines of a new recipe's ``model.config`` that set sizes and initial values: key, value, comment.

    Args:
        width: width of a position.
        local_chunk_length: number of positions in a chunk of local attention.
        axial_norm_std: standard deviation of the initial position embeddings.
    """
    return [
        ("hidden_size", width, "width of a position"),
        ("num_attention_heads", 2, "heads of each attention layer"),
        ("attention_head_size", width // 2, "width of a head"),
        ("feed_forward_size", 2 * width, "width of the feed-forward layer"),
        ("axial_pos_embds_dim", [width // 4, width * 3 // 4], "width of the position grid's rows and columns"),
        ("axial_norm_std", axial_norm_std, "the default of 1.0 dwarfs the tokens of new weights"),
        ("initializer_range", round(width**-0.5 * 0.9, 2), "about 1 / sqrt(hidden_size): at 0.02 learning starts late"),
        ("lsh_attn_chunk_length", CHUNK_LENGTH, "LSH attention: positions of similar hash that see each other"),
        ("num_hashes", 1, "LSH rounds"),
        ("local_attn_chunk_length", local_chunk_length, "local attention: positions that see each other"),
    ]


def _dropout_lines(rate: float) -> list[Line]:
    """Return the keys of dropout, with the rate of the layers' outputs."""
    return [
        ("hidden_dropout_prob", rate, "dropout of the layers' outputs"),
        ("local_attention_probs_dropout_prob", 0.0, "dropout of local attention"),
        ("lsh_attention_probs_dropout_prob", 0.0, "dropout of LSH attention"),
    ]
