"""`toolkit export`: a run's model in forms that others read, each compared with the port before it is left behind."""
