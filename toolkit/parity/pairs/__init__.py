"""Matches parameters, modules and draws of a user's port with those of the reference."""
