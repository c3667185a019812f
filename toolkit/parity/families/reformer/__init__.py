"""Reformer in the gate: buckets of hashed vectors, two residual streams, and a reversible backward."""
