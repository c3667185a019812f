"""The programs of the sides of a comparison. Each imports one framework, and no module imports them."""
