"""`toolkit bench`: time the port and another implementation, in turn on the same machine.

Each side runs in a separate process. The sides measure in turn, so a slow machine slows both sides. A ratio is printed
with its confidence interval. If the interval contains 1, no difference is claimed.
"""
