"""Finds out whether a page can be opened in a browser here."""

import os
import sys


def has_display() -> bool:
    """Whether there is a display, so that no text browser takes the terminal."""
    if sys.platform == "darwin":
        return True
    return bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    )
