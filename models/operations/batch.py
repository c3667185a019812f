"""How many examples a batch has, of which a static graph knows only when it runs."""

from __future__ import annotations

import paddle


def batch_size(x: paddle.Tensor) -> int | paddle.Tensor:
    """The size of the first axis: a number; an int64 tensor in a static graph in which it is open."""
    size = x.shape[0]
    return size if size >= 0 else paddle.shape(x)[0].astype("int64")
