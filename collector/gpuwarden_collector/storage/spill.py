"""Makes and removes the folders that DuckDB spills to; they hold nothing else.

Each opening of a database has a folder of its own in there. So what a killed process has left goes once
the database is held, and neither what this opening has spilled by then goes with it nor what another
database spills to the same place.
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
    """A new folder for this opening, in `elsewhere` or in the data folder. Raises StartError."""
    place = elsewhere or data_dir / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(mkdtemp(prefix=_prefix(data_dir), dir=place)).absolute()
    except OSError as error:
        raise StartError(
            f"spill folder {place}: {error.strerror}: choose another with spill_dir"
        ) from error


def empty_others(data_dir: Path, own: Path) -> None:
    """Delete what earlier openings of this database have left; it must be held."""
    # In the data folder all are this database's, which may have been moved meanwhile.
    is_inside = own.parent.resolve() == data_dir.resolve() / FOLDER
    for left in own.parent.glob(f"{_NAME if is_inside else _prefix(data_dir)}*"):
        if left != own:
            shutil.rmtree(left, ignore_errors=True)


def end(own: Path) -> None:
    """Delete the folder of an opening that has ended, and the place if that leaves it empty."""
    shutil.rmtree(own, ignore_errors=True)
    if own.parent.name == FOLDER:
        with suppress(OSError):
            own.parent.rmdir()


def _prefix(data_dir: Path) -> str:
    """What the folders of this database begin with: others may be in the same place."""
    name = str(data_dir.resolve()).encode()
    return f"{_NAME}{hashlib.sha256(name).hexdigest()[:12]}-"
