"""Writes versions of a file of Arrow rows, which other processes map."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

_KEPT = 2
"""Versions that are kept: a reader may be about to open the last but one."""


class ArrowFiles:
    """Versions of one set of rows. One thread at a time uses it."""

    def __init__(self, stem: Path) -> None:
        """`stem`: the path, with the first part of the file names."""
        self._stem = stem
        self._version = 0
        self._files: list[Path] = []

    @property
    def newest(self) -> Path | None:
        """The newest version; None: none was written."""
        return self._files[-1] if self._files else None

    def write(self, tables: Sequence[Any]) -> Path:
        """Write the rows of tables with one schema as the newest version. Raises OSError."""
        self._version += 1
        path = self._stem.with_name(f"{self._stem.name}-{self._version}.arrow")
        try:
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, tables[0].schema) as file,
            ):
                for rows in tables:
                    file.write_table(rows)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._files.append(path)
        for old in self._files[:-_KEPT]:
            with suppress(OSError):
                old.unlink(missing_ok=True)
        del self._files[:-_KEPT]
        return path


def read_rows(path: str) -> Any:
    """Map the rows of such a file. Raises OSError, pa.ArrowException."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()
