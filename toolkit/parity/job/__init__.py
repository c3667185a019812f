"""A gate's job as records: what both sides compute, and what is known about families and pairs beforehand."""
