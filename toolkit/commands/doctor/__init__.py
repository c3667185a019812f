"""`toolkit doctor`: find what in this installation or machine would stop or spoil a run, and how to mend it.

It must work where nothing else does. So a check that fails is a fault in the table and ends no other. A child process
imports what a check needs; its crash or silence is an answer, too. Nothing that an installation could lack is imported
at the top. The network is used only with ``--network``.

:mod:`.doctor` runs the checks and prints the table. They are in :mod:`.versions` (what is installed),
:mod:`.frameworks` and :mod:`.gpu` (what it runs on), :mod:`.services` (the hub, wandb) and :mod:`.machine` (memory,
disk, caches); :mod:`.child` asks a child process.
"""
