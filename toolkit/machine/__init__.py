"""The machine: device, threads, heap, memory, disk, home folder, scratch folders, signals, other processes.

It may import `terminal`, `errors` and `models`. Begin with `runtime.py`, which sets all of Paddle's environment before
Paddle is imported.
"""
