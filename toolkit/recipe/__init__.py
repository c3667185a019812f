"""A recipe: its keys, its YAML with line numbers, its checks, the revisions that it pins, and those that are shipped.

It may import `files`, `pages`, `machine`, `terminal`. Begin with `keys.py`, which declares every key, and `recipe.py`.
"""
