"""Test the common rows, columns and numbers of two outputs whose shapes or numbers differ."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.parity.measure.same_numbers import (
    COLUMNS,
    NOTHING,
    NUMBERS,
    ROWS,
    count_unread_differences,
    find_common_part,
)

VALUE = np.random.default_rng(0).standard_normal((2, 3, 4))
TWICE = np.concatenate([VALUE, VALUE + 1])
SCORES = np.where(np.argsort(VALUE.reshape(6, 4), -1) < 2, 0.0, VALUE.reshape(6, 4))


@pytest.mark.parametrize(
    ("ours", "theirs", "common_part"),
    [
        (VALUE[::-1], VALUE, ROWS),
        (VALUE.reshape(6, 4)[[3, 1, 0, 2, 5, 4]].reshape(2, 3, 4), VALUE, ROWS),
        (VALUE[:1], VALUE, ROWS),
        (TWICE, VALUE, ROWS),
        (VALUE[..., ::-1], VALUE, COLUMNS),
        (SCORES[SCORES != 0].reshape(-1, 2), SCORES, NUMBERS),
        (VALUE + 1e-12, VALUE[::-1], ROWS),
        (VALUE + 1e-3, VALUE[::-1], NOTHING),
        (np.concatenate([VALUE[:1], VALUE[:1]]), VALUE, NOTHING),  # each row of the reference counts once
        (np.concatenate([VALUE[:1], VALUE[:1] + 1]), VALUE, NOTHING),
        (VALUE * 2, VALUE, NOTHING),
        (np.ones((2, 3)), np.ones((4, 3)), NOTHING),  # a single number may occur by chance
        (VALUE[:0], VALUE, NOTHING),
        (np.where(VALUE > 1, np.nan, VALUE), VALUE, NOTHING),
    ],
)
def test_common_rows_columns_and_numbers_are_distinguished(ours, theirs, common_part):
    assert find_common_part(ours, theirs) == common_part


def test_only_differences_that_the_loss_does_not_depend_on_count():
    ours = VALUE.copy()
    ours[0, 0, :2] += 1
    unread = np.zeros(VALUE.shape, bool)
    assert count_unread_differences(ours, VALUE, unread, NOTHING) == 0
    unread[0, 0, 1:] = True
    assert count_unread_differences(ours, VALUE, unread, NOTHING) == 1
    assert count_unread_differences(VALUE[:, ::-1].copy(), VALUE, unread, ROWS) == 0  # a number of its row is read
    unread[0, 0] = True
    assert count_unread_differences(VALUE[:, ::-1].copy(), VALUE, unread, ROWS) == 1
