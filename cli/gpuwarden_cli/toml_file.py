"""Sets keys of a TOML file of settings and leaves all else in it as it is, comments too."""

from collections.abc import Mapping
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gpuwarden.files import make_folder, write_whole
from gpuwarden.lifecycle import StartError


def set_keys(path: Path, values: Mapping[str, str]) -> bool:
    """Whether the file had to be changed. Made where it is not there. Raises StartError."""
    try:
        text = path.read_text() if path.exists() else ""
        document = tomlkit.parse(text)
        wrong = {key: value for key, value in values.items() if document.get(key) != value}
        if not wrong:
            return False
        document.update(wrong)
        content = tomlkit.dumps(document).encode()
        if path.exists():
            found = path.stat()
            owner = found.st_uid, found.st_gid
            write_whole(path, content, mode=found.st_mode & 0o777, owner=owner)
        else:
            make_folder(path.parent)
            write_whole(path, content, mode=0o644)
    except OSError as error:
        raise StartError(f"{error.filename or path}: {error.strerror}") from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise StartError(f"{path}: not valid TOML: {error}") from error
    return True
