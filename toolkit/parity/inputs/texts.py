"""Synthetic texts that reveal faults which the first texts of a data set seldom reveal.

Each text has the pad token in its middle as an ordinary token, and it repeats a token. In a vocabulary of 246,534,
random tokens never meet twice, so a gradient that overwrites would equal a gradient that accumulates.

The documents number the texts from 1, in the order of :data:`LAYOUTS`. Their labels (:func:`.synthetic.random_batch`)
cover rare cases, too:

- Texts 1 and 4: an answer lies inside the text.
- Text 2: the answer ends beyond the text.
- Text 3: a language model ignores all labels; an answer is the last token.
- Text 5, without padding: the answer is the whole text.

A tenth of a language model's other labels is ignored. With class weights, labels alternate between the heaviest and the
lightest class (:mod:`.class_labels`).

``toolkit parity`` takes texts 1, 2 and 5 of 320 tokens for Reformer, and all five of 54 tokens for CTRL. Neither the
960 nor the 270 rows are a multiple of the 128 rows that the port sums at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from toolkit.parity.job.family import ported_family


class Layout(NamedTuple):
    """The position of a text in its row of a batch, and the padding around it.

    Attributes:
        share: share of the row that the text takes, rounded down to whole chunks of attention.
        beyond: number of tokens in addition to these chunks; negative for fewer tokens.
        padding: tokens at masked positions: ``pad`` tokens, ``any`` tokens, or ``both``.
        is_left_padded: whether the text is padded on the left, if the family allows it.
        ends_in_pad: whether the text's own last token is the pad token.
    """

    share: float
    beyond: int = 0
    padding: str = "pad"
    is_left_padded: bool = False
    ends_in_pad: bool = False


#: Layouts of the texts in a batch. The first text is mostly padding, so that some positions see only padding. A port
#: that finds the end of the second text by the mask, by the last token that is not padding, by the number of such
#: tokens or by the row gets different positions. The first four texts end one token after a chunk of attention, with
#: it, one token before its end, and one token after it.
LAYOUTS = (
    Layout(1 / 4, beyond=1, padding="any", is_left_padded=True),
    Layout(1 / 3, ends_in_pad=True),
    Layout(3 / 4, beyond=-1, padding="both"),
    Layout(1 / 2, beyond=1),
    Layout(1.0),
)
#: Indices of the layouts in :data:`LAYOUTS`. All token labels of the text NOTHING_COUNTS are ignored.
MOSTLY_PADDED, ENDS_IN_PAD, NOTHING_COUNTS, _, FULL = range(len(LAYOUTS))


class Texts(NamedTuple):
    """Synthetic texts of a batch, with their mask.

    Attributes:
        layouts: index of each row's layout in :data:`LAYOUTS`, (B,).
        tokens: token ids, int64 (B, T).
        mask: attention mask, int64 (B, T), 0 for padding.
        ends: position after the last token of each text, int64 (B,).
    """

    layouts: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    ends: np.ndarray


def layouts_of(count: int) -> np.ndarray:
    """Return the indices in :data:`LAYOUTS` for the rows of a batch, int64 (count,).

    The last row is full: a faulty sum leaves out the last rows, and padding there would have no gradient to lose.

    Args:
        count: number of rows.
    """
    return np.append(np.arange(count - 1) % FULL, FULL)


def make_texts(
    config: Mapping[str, Any], model: str, layouts: np.ndarray, length: int, draw: np.random.Generator
) -> Texts:
    """Return a random text with its mask for each layout.

    Args:
        config: resolved configuration of the model.
        model: name of the family.
        layouts: index of each row's layout in :data:`LAYOUTS`, (B,).
        length: number of tokens T of each row.
        draw: generator of the tokens.
    """
    pad = config["pad_token_id"]
    model_family = ported_family(model)
    chunk = model_family.chunk_length(config)
    tokens = draw.integers(0, config["vocab_size"], (len(layouts), length))
    mask, ends = np.zeros_like(tokens), np.zeros(len(layouts), np.int64)
    for row, layout in enumerate(LAYOUTS[place] for place in layouts):
        size = _count_tokens(layout, length, chunk)
        starts_late = layout.is_left_padded and model_family.pads_left
        text = slice(length - size, length) if starts_late else slice(0, size)
        mask[row, text], ends[row] = 1, text.stop
        inside = tokens[row, text]
        inside[size // 4 : size // 2] = inside[size // 4]
        if pad is None:
            continue
        if layout.padding != "any":
            is_pad = (mask[row] == 0) & ((layout.padding == "pad") | (draw.random(length) < 0.5))
            tokens[row, is_pad] = pad
        if size > 3:
            inside[size // 2] = pad
            inside[-1] = pad if layout.ends_in_pad else (pad + 1) % config["vocab_size"]
    return Texts(layouts, tokens, mask, ends)


def _count_tokens(layout: Layout, length: int, chunk: int) -> int:
    """Return the number of tokens of a text in its row.

    Args:
        layout: layout of the text.
        length: number of tokens of the row.
        chunk: number of tokens in a chunk of attention.
    """
    max_tokens = int(layout.share * length)
    num_chunk_tokens = max_tokens // chunk * chunk or max_tokens
    return min(max(1, num_chunk_tokens + layout.beyond), length)
