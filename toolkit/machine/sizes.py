"""Numbers of bytes in words."""

from __future__ import annotations


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes in GB, or in MB below one GB, with one decimal or, from 10 MB to 1 GB, with none."""
    if num_bytes >= 1e9:
        return format_gigabytes(num_bytes)
    return f"{num_bytes / 1e6:.{1 if num_bytes < 1e7 else 0}f} MB"


def format_gigabytes(num_bytes: float) -> str:
    """Format a number of bytes in GB, with one decimal."""
    return f"{num_bytes / 1e9:,.1f} GB"
