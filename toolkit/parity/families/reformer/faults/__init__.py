"""The faults of Reformer's port as YAML files, one file for each kind of fault."""
