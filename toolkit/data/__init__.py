"""From a recipe's `data` section to rows, splits and batches: local files, folders, the hub, built-in corpora.

It may import `recipe`, `files`, `pages`, `machine`, `terminal`. Begin with `load.py`.
"""
