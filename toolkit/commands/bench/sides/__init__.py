"""The sides of a comparison: programs that import one framework each. Nothing imports them."""
