"""The batch size, which a static graph may know only when it runs."""

from __future__ import annotations

import paddle


def batch_size(x: paddle.Tensor) -> int | paddle.Tensor:
    """Return the size of the first axis: a number, or an int64 tensor if a static graph leaves it open."""
    size = x.shape[0]
    return size if size >= 0 else paddle.shape(x)[0].astype("int64")
