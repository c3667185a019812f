"""Files read and written whole: tables, text encodings, strict JSON, the cache, and whose a folder is.

It may import `machine`, `terminal`, `errors` and `models`. Begin with `whole.py`, by which every file of a run is
written, and `ownership.py`, without which none is removed.
"""
