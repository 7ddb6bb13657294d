"""The installer that travels in a bundle: Python's standard library alone."""
