"""A decoder whose layers mix each position with the mean of those before it: the smallest family there can be."""
