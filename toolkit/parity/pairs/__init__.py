"""Match the parameters, modules and draws of a user's port with their counterparts in the reference."""
