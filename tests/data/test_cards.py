"""Test the card of a folder of data, which the `datasets` library also reads."""

from __future__ import annotations

import types

import pytest

from toolkit.data.folder_data import _check_cards


def test_a_card_whose_aliases_stand_for_gigabytes_is_refused(tmp_path):
    levels = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 30)]
    (tmp_path / "README.md").write_text("\n".join(["---", "l0: &l0 [x]", *levels, "configs: *l29", "---", ""]))
    recipe = types.SimpleNamespace(error=lambda key, message: ValueError(f"{key}: {message}"))
    with pytest.raises(ValueError, match=r"^data\.dataset: cannot read .*README\.md: aliases \(\*\) are not read$"):
        _check_cards(recipe, tmp_path)
