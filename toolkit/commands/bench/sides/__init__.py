"""The sides of a comparison: programs, each of which imports one framework, and which nothing imports."""
