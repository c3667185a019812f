"""Built-in data sets: text that every installation already holds, so that a run needs no download.

Each module has ``Options``, a pydantic model of the recipe's ``data.options``, and ``load(options)``, which returns the
splits. Where an option has a value that ``load`` cannot use, it raises a ``ValueError``; ``CHECKED_OPTION`` names the
option that this is about.
"""
