"""CTRL in the gate: a computed position table, additive masks, and a comparison stage by stage of large models."""
