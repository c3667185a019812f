"""What the gate knows of single models, a folder each. No other part of the gate knows their names.

``family`` holds what is known without a framework. ``candidate`` and ``reference`` watch a step of the port and of the
reference. ``mutants`` are the faults the gate is tried with, ``trial`` the model for them, ``sweep`` random models.
``pair`` is a user's own model, of which nothing is known beforehand. The parts are found by their names
(:func:`toolkit.parity.job.family_part.family_part`), each in the process that can import it.
"""
