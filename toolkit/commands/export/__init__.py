"""`toolkit export`: write a run's model in formats that others read, after comparing it with the port."""
