"""The faults, one file for each kind."""
