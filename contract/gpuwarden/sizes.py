"""Formats numbers of bytes for people."""


def size_text(size_bytes: float) -> str:
    """`512 B`, `1.5 KiB`, `20.0 GiB`."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"
