"""What every port has: its base class, its configuration's schema, weights by name and role, tokenizers, adapters.

It may import `operations` and `files`. Begin with `base.py`.
"""
