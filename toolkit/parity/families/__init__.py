"""The parts of the gate that depend on the model, in one folder per family. No other part of the gate names a model.

``family`` has the facts that need no framework. ``candidate`` and ``reference`` record a step of the port and of the
reference. ``mutants`` are the faults of the gate's trials, ``trial`` is the model of these trials, and ``sweep`` draws
random models. The folder ``pair`` compares a user's own model, about which nothing is known in advance. A part is found
by its name (:func:`toolkit.parity.job.family_part.family_part`), in the process that can import it.
"""
