"""The parts of the gate that depend on the model: a folder for each family. No other part of the gate names a model.

``family`` has the facts that need no framework. ``candidate`` and ``reference`` record a step of the port and of the
reference. ``mutants`` are the faults of the gate's trials, ``trial`` is their model, and ``sweep`` draws random models.
``pair`` is for a user's own model, without prior knowledge. The parts are found by their names
(:func:`toolkit.parity.job.family_part.family_part`), each in the process that can import it.
"""
