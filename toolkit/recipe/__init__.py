"""Recipes: their keys, YAML with line numbers, checks, pinned revisions, and the recipes that the toolkit ships.

It may import `files`, `pages`, `machine`, `terminal`. Begin with `keys.py`, which declares every key, and `recipe.py`.
"""
