"""The installer that travels in a bundle: Python's standard library, and `installer` to lay out wheels."""
