"""All commands except `finetune` and `parity`: predict, generate, serve, evaluate, export, push, doctor, bench, recipe.

It may import everything but `cli`. Each command is a separate file or folder. `cli.py` declares their options.
"""
