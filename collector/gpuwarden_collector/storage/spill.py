"""Creates and removes the folders that DuckDB spills to; they hold nothing else.

Each opening of a store has a folder of its own. So once the store is locked, folders of killed processes
can be removed, without those of this opening or of another store in the same place.
"""

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from gpuwarden.lifecycle import StartError

FOLDER = "spill"
_NAME = "gpuwarden-"


def begin(data_dir: Path, elsewhere: Path | None) -> Path:
    """Create a folder for this opening, in `elsewhere` or in the data folder. Raises StartError."""
    place = elsewhere or data_dir / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(mkdtemp(prefix=_prefix(data_dir), dir=place)).absolute()
    except OSError as error:
        raise StartError(
            f"spill folder {place}: {error.strerror}: choose another with spill_dir"
        ) from error


def empty_others(data_dir: Path, own: Path) -> None:
    """Delete the folders of earlier openings of this store, which must be locked."""
    # In the data folder all belong to this store, which may have been moved.
    is_inside = own.parent.resolve() == data_dir.resolve() / FOLDER
    for left in own.parent.glob(f"{_NAME if is_inside else _prefix(data_dir)}*"):
        if left != own:
            shutil.rmtree(left, ignore_errors=True)


def end(own: Path) -> None:
    """Delete the folder of an opening, and its parent if that is empty."""
    shutil.rmtree(own, ignore_errors=True)
    if own.parent.name == FOLDER:
        with suppress(OSError):
            own.parent.rmdir()


def _prefix(data_dir: Path) -> str:
    """The first part of this store's folder names; another store may use the same place."""
    name = str(data_dir.resolve()).encode()
    return f"{_NAME}{hashlib.sha256(name).hexdigest()[:12]}-"
