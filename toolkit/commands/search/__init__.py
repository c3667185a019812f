"""`toolkit search`: train with different settings of a recipe and keep the best run.

:mod:`.space` has the settings to try, :mod:`.record` the saved state of a search, and :mod:`.search` runs the trials.
"""
