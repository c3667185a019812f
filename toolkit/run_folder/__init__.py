"""The files of a run on disk: its folder and lock, checkpoints, metrics and predictions, written and read.

It may import `recipe`, `files`, `pages`, `machine`, `terminal`. Begin with `folder.py`.
"""
