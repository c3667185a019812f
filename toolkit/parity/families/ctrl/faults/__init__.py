"""The faults of CTRL's port as YAML files, one file for each kind of fault."""
