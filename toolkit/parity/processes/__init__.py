"""The processes of a gate: other Pythons, their start, their watch and their end."""
