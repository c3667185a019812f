"""Built-in data sets: text that every installation already holds, so that a run needs no download.

Each module has ``Options``, a pydantic model of the recipe's ``data.options``, and ``load(options)``, which returns the
splits. ``load`` raises a ``ValueError`` for an option that it cannot use; ``CHECKED_OPTION`` names that option.
"""
