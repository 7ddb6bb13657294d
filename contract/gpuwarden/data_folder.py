"""Lists what a collector keeps in its data folder. Backup, restore, check and docs/store.md follow from it. Pure.

A file that no entry names is in no backup: a test runs a collector and looks for such files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpuwarden.sqlite_file import NOTIFICATIONS

STATE = "state.sqlite"
CATALOGUE = "lake/catalog.sqlite"
POLICIES = "policies.sqlite"
TOKENS = "tokens.json"
RECEIVED = "received.sqlite"
CONTROL = "control.sock"
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class OwnFile:
    """How a SQLite file that no other file depends on is checked: a backup has a copy of it."""

    facts: Mapping[str, str]
    """What to say about it: a query of one number by its words."""
    loss: str
    """What is lost when it is set aside."""


@dataclass(frozen=True, slots=True)
class DataEntry:
    """A file, several by a pattern, or a whole folder (`name/`)."""

    name: str
    what: str
    is_copied: bool
    """Whether a backup has it."""
    otherwise: str = ""
    """Why a backup does not have it, and what that means after a restore; Markdown."""
    own: OwnFile | None = None

    def has(self, path: str) -> bool:
        """Whether a path, relative to the data folder, belongs to the entry."""
        if self.name.endswith("/"):
            return path.startswith(self.name)
        ends = _SQLITE_ENDS if self.name.endswith(".sqlite") else ("",)
        return any(fnmatchcase(path, self.name + end) for end in ends)


DATA_FOLDER = (
    DataEntry("segments/*.seg", "the newest rows: append-only files of Arrow frames", True),
    DataEntry(STATE, "rows that are updated: nodes, GPUs, alerts, silences, diagnoses, saved queries, the ledger"
              " of stored batches, late windows", True),
    DataEntry(CATALOGUE, "the lake's catalogue: DuckLake on SQLite", True),
    DataEntry("lake/data/", "sealed rows, `main/TABLE/year=…/month=…/day=…/`: Parquet, zstd, sorted by the table's key", True),
    DataEntry(NOTIFICATIONS, "what [notifications](notifications.md#delivery) were sent, and messages that wait", True,
              "nothing that was sent by then is sent again, and what waited is sent",
              OwnFile({"messages that wait": "SELECT count(*) FROM messages"},
                      "incidents that are open are sent again, and messages that waited are lost")),
    DataEntry(POLICIES, "cases of [policies](policies.md), acts to undo, links to owners, and whether policies are stopped", True,
              "cases continue where they were; policies that were stopped stay so",
              OwnFile({"open cases": "SELECT count(*) FROM cases WHERE is_open",
                       "policies are stopped": "SELECT count(*) FROM stopped"},
                      "open cases and the stop of policies are lost, and nodes that policies drained stay drained")),
    DataEntry(f"{TOKENS}*", "[tokens](security.md#tokens), and when each was last used", False,
              "a secret that seldom changes: copy it yourself, readable by root alone; without it make new tokens and"
              " enroll every agent again"),
    DataEntry(f".{TOKENS}*", "held while tokens change", False, "of no use"),
    DataEntry("tls/", "[certificates](security.md#certificates) and keys that `gpuwarden collector init` made", False,
              "secrets: as `tokens.json`"),
    DataEntry(RECEIVED, "samples of Prometheus for about ten seconds, until they are rows", False,
              "these seconds are missing"),
    DataEntry("copies/", "[second copies](cluster.md#a-second-copy) of other collectors' segments", False,
              "those send them again while they are there"),
    DataEntry("agent/", "batches of the agent of `gpuwarden up` that wait", False, "they are missing"),
    DataEntry("simulated/", "batches of the simulated agents of `gpuwarden up` that wait", False, "they are missing"),
    DataEntry("lost/", "what `check --repair` set aside, segments whose sealed rows are missing, and for 30 days files that the"
              " catalogue does not know", False, "of no use"),
    DataEntry("*.sqlite.corrupt-*", "a damaged file that the collector replaced", False, "of no use"),
    DataEntry("segments/*.rows", "rows of a segment, joined for readers, 8 MiB each", False, "made again"),
    DataEntry("segments/*.new", "a file that is being written", False, "made again"),
    DataEntry("lake/backup/", "copies that `backup` is making", False, "of no use"),
    DataEntry("restoring/", "what `restore` is copying", False, "of no use"),
    DataEntry("spill/", "what queries have no memory for", False, "made again"),
    DataEntry(CONTROL, "for `backup` and `maintain`", False, "made again"),
    DataEntry("lock", "which process has the store", False, "made again"),
)  # fmt: skip
OWN_FILES = {entry.name: entry.own for entry in DATA_FOLDER if entry.own is not None}
COPIED_NAMES = tuple(
    dict.fromkeys(entry.name.partition("/")[0] for entry in DATA_FOLDER if entry.is_copied)
)
"""Names in the data folder of which a backup has all or some."""


def entry_of(path: str) -> DataEntry | None:
    """The entry that has a path, relative to the data folder; None: no collector writes it."""
    return next((entry for entry in DATA_FOLDER if entry.has(path)), None)


def copied_files(folder: Path) -> Iterator[Path]:
    """Files of a store, as paths relative to its folder, that a backup has. Raises OSError."""
    for path in _files(folder):
        entry = entry_of(path.as_posix())
        if entry is not None and entry.is_copied:
            yield path


def strangers(folder: Path) -> list[str]:
    """Files of a data folder that no entry names, as paths relative to it. Raises OSError."""
    return sorted(path.as_posix() for path in _files(folder) if entry_of(path.as_posix()) is None)


def _files(folder: Path) -> Iterable[Path]:
    return (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())


def table() -> Iterator[str]:
    """Lines of the table in docs/store.md."""
    yield "| in `data_dir` | what | in a backup | after a restore |"
    yield "| --- | --- | --- | --- |"
    for entry in DATA_FOLDER:
        yield (
            f"| `{entry.name}` | {entry.what} | {'yes' if entry.is_copied else 'no'} |"
            f" {entry.otherwise}{' |' if entry.otherwise else '|'}"
        )
