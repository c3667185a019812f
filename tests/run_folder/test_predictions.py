"""Test rows of predictions in files: numbers with six digits, and texts that CSV can hold."""

from __future__ import annotations

import pytest

from toolkit.run_folder.predictions import predictions_file, read_predictions, write_predictions


@pytest.mark.parametrize(
    ("value", "expected_text"),
    [
        (0.123456789, "0.123457"),
        (1.0, "1"),
        (1234567.0, "1.23457e+06"),
        (3e-9, "3e-09"),
        (12345678, "12345678"),
        ("a\0b", "a\\x00b"),
        ('"quoted", and\nbroken', '"quoted", and\nbroken'),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_value_is_written_so_that_it_can_be_read(tmp_path, value, expected_text):
    path = predictions_file(tmp_path, "test")
    write_predictions(path, [{"row": 1, "found": value}, {"row": 2, "found": value}])
    assert list(read_predictions(path)) == [{"row": str(row), "found": expected_text} for row in (1, 2)]
