"""A pair of the user's: any torch module, and any Paddle layer that is its port."""
