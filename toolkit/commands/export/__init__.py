"""`toolkit export`: write a run's model in formats of other programs, after comparing it with the port."""
