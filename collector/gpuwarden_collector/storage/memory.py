"""Gives memory that nothing uses any more back to the system.

What a seal or a minute took for a moment stays with Arrow's pool and with the C library otherwise.
"""

import ctypes
from contextlib import suppress

import pyarrow as pa


def free_memory() -> None:
    """Do it now; milliseconds."""
    pa.default_memory_pool().release_unused()
    # Not every C library has it.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
