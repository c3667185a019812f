"""Fine-tune Paddle ports of Reformer and CTRL behind a parity gate. Importing this package imports nothing heavy."""

__version__ = "0.1.0"
