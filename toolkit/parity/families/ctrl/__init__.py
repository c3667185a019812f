"""CTRL: a position table that is computed, masks that are numbers, released so large that it goes stage by stage."""
