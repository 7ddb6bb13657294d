"""Names the folders that all of `release/` works in."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwarden"
"""What took long to get or make, by names that change with all it depends on."""
