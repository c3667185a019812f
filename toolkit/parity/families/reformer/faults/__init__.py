"""The faults, a kind in each module."""
