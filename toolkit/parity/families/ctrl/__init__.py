"""CTRL: a computed position table, masks that are numbers, a release so large that it is compared stage by stage."""
