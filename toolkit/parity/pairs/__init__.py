"""Pairs of the user's: which parameter, module and draw of the port is which of the reference."""
