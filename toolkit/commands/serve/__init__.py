"""`toolkit serve`: a finished run behind a page and two addresses for programs. Begin with `serve.py`."""
