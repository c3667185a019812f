"""A small Reformer with new weights, as `toolkit recipe new` proposes it: keys, values and comments."""

from __future__ import annotations

from typing import Any

#: The length of a chunk of attention, and the most chunks ahead that the first position sees.
CHUNK = 64
MOST_AHEAD = 7

Line = tuple[str, Any, str]


def lines(head: str, length: int, rows: int) -> list[Line]:
    """Return the configuration for texts of ``length`` tokens, ``rows`` of them to train on."""
    if head == "sequence_classification":
        ahead = min(MOST_AHEAD, max(1, -(-length // CHUNK) - 1))
        return [
            ("attn_layers", ["local", "lsh"], "kind of attention, from the first layer to the last"),
            *_keys(64 if rows < 300 else 128, CHUNK),
            ("local_num_chunks_before", 1, "... and the chunks before them"),
            (
                "local_num_chunks_after",
                ahead,
                "... and after: the classification head reads position 0, so look ahead",
            ),
            *_dropout(0.1 if rows < 20_000 else 0.0),
        ]
    if head == "token_classification":
        return [
            ("attn_layers", ["local", "lsh"], "kind of attention, from the first layer to the last"),
            *_keys(128, 16, 0.1),
            ("local_num_chunks_before", 1, "... and the chunks before them"),
            ("local_num_chunks_after", 1, "... and after"),
            *_dropout(0.1),
        ]
    return [
        ("attn_layers", ["lsh", "local", "lsh", "local"], "LSH finds the question's words, local reads beside them"),
        *_keys(128, 16),
        ("local_num_chunks_before", 1, "... and the chunks before them"),
        ("local_num_chunks_after", 1, "... and after"),
        *_dropout(0.0),
    ]


def _keys(width: int, local_chunk: int, positions: float = 0.02) -> list[Line]:
    return [
        ("hidden_size", width, "width of a position"),
        ("num_attention_heads", 2, "heads of each attention layer"),
        ("attention_head_size", width // 2, "width of a head"),
        ("feed_forward_size", 2 * width, "width of the feed-forward layer"),
        ("axial_pos_embds_dim", [width // 4, width * 3 // 4], "width of the position grid's rows and columns"),
        ("axial_norm_std", positions, "the default of 1.0 dwarfs the tokens of new weights"),
        ("initializer_range", round(width**-0.5 * 0.9, 2), "about 1 / sqrt(hidden_size): at 0.02 learning starts late"),
        ("lsh_attn_chunk_length", CHUNK, "LSH attention: positions of similar hash that see each other"),
        ("num_hashes", 1, "LSH rounds"),
        ("local_attn_chunk_length", local_chunk, "local attention: positions that see each other"),
    ]


def _dropout(rate: float) -> list[Line]:
    return [
        ("hidden_dropout_prob", rate, "dropout of the layers' outputs"),
        ("local_attention_probs_dropout_prob", 0.0, "dropout of local attention"),
        ("lsh_attention_probs_dropout_prob", 0.0, "dropout of LSH attention"),
    ]
