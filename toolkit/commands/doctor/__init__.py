"""`toolkit doctor`: what of this installation and this machine would stop or spoil a run, and what mends it.

It must work where nothing else does. So a check that fails is a fault in the table and ends no other; whatever has to
be imported to know is imported by a child process, whose crash or silence is an answer, too; and nothing here is
imported at the top that an installation could lack. Nobody is called, but with ``--network``.

:mod:`.command` runs the checks and prints the table. They are in :mod:`.versions` (what is installed),
:mod:`.frameworks` and :mod:`.gpu` (what it runs on), :mod:`.services` (the hub, wandb) and :mod:`.machine` (memory,
disk, caches); :mod:`.child` asks a process of its own.
"""
