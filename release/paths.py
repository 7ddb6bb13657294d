"""Names the folders that all of `release/` works in."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwarden"
"""Cache of what takes long to download or build, by names that change with all inputs."""
