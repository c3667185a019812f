"""Terminal output: consoles that escape what they print, progress bars, failures in one line.

It may import `errors`. Begin with `failure.py`, which decides what a traceback becomes.
"""
