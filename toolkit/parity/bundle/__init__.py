"""Recorded references, and the cache of measurements."""
