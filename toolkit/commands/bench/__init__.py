"""`toolkit bench`: time the port and another implementation, in turn on the same machine.

Each side is a process of its own. One measures while the other waits, so whatever slows the machine down slows both.
A ratio is given with its interval; if that holds 1, no difference is claimed.
"""
