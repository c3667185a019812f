"""Synthetic weights, batches and texts that reveal faults."""
