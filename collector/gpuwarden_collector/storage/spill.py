"""Creates and removes the folders that DuckDB spills to; they hold nothing else.

Each opening of a store has a folder of its own. So once the store is locked, folders of killed processes
can be removed, without those of this opening.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from gpuwarden.lifecycle import StartError

FOLDER = "spill"


def begin(data_dir: Path) -> Path:
    """Create a folder for this opening in the data folder. Raises StartError."""
    place = data_dir / FOLDER
    try:
        place.mkdir(exist_ok=True)
        return Path(mkdtemp(dir=place)).absolute()
    except OSError as error:
        raise StartError(f"spill folder {place}: {error.strerror}") from error


def empty_others(own: Path) -> None:
    """Delete the folders of earlier openings of this store, which must be locked."""
    for left in own.parent.iterdir():
        if left != own:
            shutil.rmtree(left, ignore_errors=True)


def end(own: Path) -> None:
    """Delete the folder of an opening, and its parent if that is empty."""
    shutil.rmtree(own, ignore_errors=True)
    with suppress(OSError):
        own.parent.rmdir()
