"""`toolkit doctor`: find faults of this installation or machine that would stop or spoil a run, and print remedies.

It must work on a broken installation. Therefore a check that fails becomes a fault in the table and does not stop the
other checks. A child process imports the packages that a check needs. If it crashes or hangs, that is reported as well.
Packages that an installation could lack are never imported at the top. The network is used only with ``--network``.

:mod:`.doctor` runs the checks and prints the table. The checks are in :mod:`.versions` (installed packages),
:mod:`.frameworks` and :mod:`.gpu` (frameworks, devices), :mod:`.services` (the hub, wandb) and :mod:`.machine` (memory,
disk, caches). :mod:`.child` runs code in a child process.
"""
