"""A gate's request, and the job folder that is built from it."""
