"""`toolkit search`: try settings of a recipe, keep the best run. :mod:`.space` is what is tried, :mod:`.record` what is
kept of it, :mod:`.search` runs the trials."""
