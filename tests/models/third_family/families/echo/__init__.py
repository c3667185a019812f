"""What the gate knows of Echo."""
