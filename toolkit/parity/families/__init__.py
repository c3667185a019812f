"""What the gate knows of single models: a folder each, and no other part of the gate knows their names.

``family`` says what can be said without a framework, ``candidate`` and ``reference`` how a step of the port and of the
reference is watched, ``mutants`` which faults the gate is tried with, ``trial`` on which model, ``sweep`` on which
random ones. ``pair`` is a user's own, of which nothing is known beforehand. The parts are found by their names
(:func:`toolkit.parity.job.family_part.family_part`), each in the process that can import it.
"""
