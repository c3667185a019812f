"""The two sides of a pair: any torch module as the reference, and any Paddle layer as its port."""
