"""What the port computed, compared with the reference: a process of its own, in which neither code of the user's nor a
framework runs.

The port's process hands over (:mod:`toolkit.parity.job.handover`), this one measures and writes the port's
``result.json``. Nothing imports it: it is a program of its own, as the two workers are. Begin with :mod:`.result`.
"""
