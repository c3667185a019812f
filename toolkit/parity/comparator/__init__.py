"""Comparison of the port's tensors with the reference's, in a process of its own that runs neither user code nor a
framework.

The port's process hands over (:mod:`toolkit.parity.job.handover`), this one measures and writes the port's
``result.json``. Nothing imports it: it is a program of its own, as the two workers are. Begin with :mod:`.result`.
"""
