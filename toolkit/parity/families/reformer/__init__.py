"""Reformer: buckets of hashed vectors, two streams, a backward that computes layers again."""
