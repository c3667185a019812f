"""Terminal output: consoles that escape control characters, progress bars, failures in one line.

It may import `errors`. Begin with `failure.py`, which turns an exception into one line.
"""
