"""Reads how short of CPU the host, or the container, is: Linux's pressure stall information."""

from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")


def pressure_percent(path: Path = PRESSURE) -> float | None:
    """Share of the last minute in which something waited for a CPU; None: the kernel does not say."""
    try:
        words = path.read_text().split()
        # some avg10=1.20 avg60=0.85 avg300=0.60 total=1234
        return next(float(w.removeprefix("avg60=")) for w in words if w.startswith("avg60="))
    except (OSError, ValueError, StopIteration):
        return None
