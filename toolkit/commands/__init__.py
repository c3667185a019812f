"""All commands except `finetune` and `parity`: predict, generate, serve, evaluate, export, push, doctor, bench, recipe.

It may import everything but `cli`. Each command is a file or a folder of its own; `cli.py` has their options.
"""
