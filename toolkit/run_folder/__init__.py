"""What a run leaves on disk: its folder and lock, checkpoints, metrics, predictions, and how they are read again.

It may import `recipe`, `files`, `pages`, `machine`, `terminal`. Begin with `folder.py`.
"""
