"""Files read and written whole: tables, text encodings, strict JSON, the cache, and whose a folder is.

It may import `machine`, `terminal`, `errors` and `models`. Begin with `whole.py`, which writes every file of a run,
and `ownership.py`, which decides whether a file may be removed.
"""
