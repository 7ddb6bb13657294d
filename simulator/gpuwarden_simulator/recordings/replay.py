"""Replays a recording as probes, at the current time.

The first tick plays the first recorded tick, and time continues from there. Rows keep their values, with
the changes listed in `docs/simulator.md`: GPUs get UUIDs of the node that plays them, times in rows move
with the clock, and when the recording starts again, counters continue from their last values. Gaps of
the recording (a missed tick, a probe that hung) are gaps of the replay.
"""

import math
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

from gpuwarden.metrics import METRICS, Kind, Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value
from gpuwarden_agent.sampling.coverage import UNCOUNTED
from gpuwarden_agent.sampling.schedule import cadence_ms
from gpuwarden_simulator.recordings.format import (
    Block,
    Described,
    Ended,
    Entry,
    Failure,
    RecordedProbe,
    RecordingError,
    RecordingHeader,
    Samples,
    decode_block,
    read_blocks,
)
from gpuwarden_simulator.recordings.pseudonyms import mapped_uuid

NAMESPACE = uuid.UUID("9e0a4f0b-6d0c-5d0e-9f3a-51a1c7f2b8d6")
"""Namespace of the UUIDs of replayed GPUs."""

BLOCKS_KEPT = 2
"""Decoded blocks in memory, which probes of a node, and nodes in step, share."""

STEP_BITS = 36
"""Bits of the step by which a counter of floats continues: a float holds each multiple of the step
exactly, so that no sum falls by rounding."""

Series: TypeAlias = tuple[str, tuple[Value, ...]]
"""A table, and the key of a row without its time."""

_COLUMNS = {
    name: frozenset(table.names) - {"ts", "node", "simulated"}
    for name, table in WIRE_TABLES.items()
}
_COLUMNS["events"] |= {"ts"}
_COUNTERS = {
    table: frozenset(m.name for m in metrics if m.kind is Kind.COUNTER)
    for table, metrics in METRICS.items()
}
_INSTANTS = {
    name: frozenset(c.name for c in table.columns if c.type is Type.TIMESTAMP)
    for name, table in WIRE_TABLES.items()
}
_KEYS = {
    name: tuple(column for column in table.key if column not in ("ts", "node"))
    for name, table in WIRE_TABLES.items()
}


@dataclass(slots=True)
class _Totals:
    """First and last value of each counter of each series."""

    first: dict[Series, Row] = field(default_factory=dict)
    last: dict[Series, Row] = field(default_factory=dict)

    def take(self, rows: Reading) -> None:
        for table, several in rows.items():
            counters = _COUNTERS.get(table, frozenset())
            for row in several if counters else ():
                series = series_of(table, row)
                first, last = self.first.setdefault(series, {}), self.last.setdefault(series, {})
                for name in counters & row.keys():
                    first.setdefault(name, row[name])
                    last[name] = row[name]

    def steps(self) -> Mapping[Series, Mapping[str, int | float]]:
        """The step of each counter for each repetition, without counters that did not grow."""
        return {
            series: {
                name: ahead
                for name, value in last.items()
                if (ahead := step_of(self.first[series].get(name), value))
            }
            for series, last in self.last.items()
        }


def series_of(table: str, row: Row) -> Series:
    """The series of a row's counters: a GPU, a link, a process."""
    return table, tuple([row.get(name) for name in _KEYS.get(table, ())])


def step_of(first: Value, last: Value) -> int | float:
    """What to add so that a counter from `first` to `last` does not fall at a repetition; 0 for a counter
    that did not grow: it was reset, and is reset again.
    """
    if not isinstance(first, (int, float)) or not isinstance(last, (int, float)) or last <= first:
        return 0
    if isinstance(first, int) and isinstance(last, int):
        return last - first
    if not (math.isfinite(first) and math.isfinite(last)):
        return 0
    ahead = Fraction(last) - Fraction(first)
    bits = ahead.numerator.bit_length() - ahead.denominator.bit_length() - STEP_BITS
    quantum = Fraction(2) ** bits
    return float(math.ceil(ahead / quantum) * quantum)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a block in the file, and its earliest tick."""

    offset: int
    size_bytes: int
    first_ms: int


class Recording:
    """A recording on disk: an index of its blocks, and a cache of decoded blocks."""

    def __init__(self, path: Path) -> None:
        """Read the whole file once. Raises RecordingError."""
        self.path = path
        self.is_whole = False
        """Whether the recorder stopped normally."""
        self.unknown: set[str] = set()
        """Tables and columns that this version does not know; they are skipped."""
        self.first_ms, self.last_ms = 2**63, -1
        """The first and the last tick that has samples."""
        self._kept: dict[int, Mapping[str, Sequence[Entry]]] = {}
        self._places: list[_Place] = []
        totals = _Totals()
        for header, block in _blocks_of(path):
            self.header = header
            first_ms = min((entry.ts_ms for entry in block.entries), default=self.last_ms)
            self._places.append(_Place(block.offset, block.size_bytes, first_ms))
            for entry in block.entries:
                self._take(entry, totals)
        if self.last_ms < 0:
            raise RecordingError(f"{path} has no samples")
        _check_probes(path, self.header)
        self.steps = totals.steps()
        self.interval_ms = max(1, round(self.header.interval_s * 1000))

    @property
    def length_ms(self) -> int:
        """From its first tick to the one after its last."""
        return self.last_ms - self.first_ms + self.interval_ms

    @property
    def gpus(self) -> int:
        """How many of its probes are about a GPU."""
        return sum("gpu_samples" in probe.tables for probe in self.header.probes)

    def begins_by(self, number: int, at_ms: int) -> bool:
        """Whether the block exists and starts at or before a recorded time."""
        return number < len(self._places) and self._places[number].first_ms <= at_ms

    def block(self, number: int) -> Mapping[str, Sequence[Entry]]:
        """Entries of a block by probe. Raises OSError, and RecordingError when the file changed."""
        if number not in self._kept:
            place = self._places[number]
            with self.path.open("rb") as file:
                file.seek(place.offset)
                entries, _ = decode_block(file.read(place.size_bytes))
            by_probe: dict[str, list[Entry]] = {}
            for entry in entries:
                if not isinstance(entry, Ended):
                    by_probe.setdefault(entry.probe, []).append(entry)
            while len(self._kept) >= BLOCKS_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = by_probe
        return self._kept[number]

    def first_inventory(self, probe: str) -> Described | None:
        """The first inventory of a probe in the blocks that are written first."""
        for number in range(min(BLOCKS_KEPT, len(self._places))):
            for entry in self.block(number).get(probe, ()):
                if isinstance(entry, Described):
                    return entry
        return None

    def _take(self, entry: Entry, totals: _Totals) -> None:
        if isinstance(entry, Ended):
            self.is_whole = True
        if isinstance(entry, (Samples, Described)):
            self.unknown |= _unknown(entry.rows)
        if isinstance(entry, Samples):
            self.first_ms = min(self.first_ms, entry.ts_ms)
            self.last_ms = max(self.last_ms, entry.ts_ms)
            totals.take(entry.rows)


def _blocks_of(path: Path) -> Iterator[tuple[RecordingHeader, Block]]:
    try:
        with path.open("rb") as file:
            header: RecordingHeader | None = None
            for block in read_blocks(file, str(path)):
                header = header or block.header
                assert header is not None  # or read_blocks had raised
                yield header, block
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error


def _check_probes(path: Path, header: RecordingHeader) -> None:
    names = [probe.name for probe in header.probes]
    if len(set(names)) != len(names):
        raise RecordingError(f"{path}: two probes have the same name")
    for probe in header.probes:
        if any(cadence < 1 for cadence in probe.tables.values()):
            raise RecordingError(f"{path}: {probe.name} has a cadence below a second")


def _unknown(rows: Reading) -> set[str]:
    unknown = rows.keys() - _COLUMNS.keys()
    for table in rows.keys() & _COLUMNS.keys():
        for row in rows[table]:
            if not row.keys() <= _COLUMNS[table]:
                unknown |= {f"{table}.{name}" for name in row.keys() - _COLUMNS[table]}
    return unknown


@dataclass(slots=True)
class Play:
    """A recording that one node plays: its start, and the node's identities."""

    recording: Recording
    node: str
    began_ms: int | None = None
    """The first tick; None: not yet."""
    _uuids: dict[str, str] = field(default_factory=dict)

    def probes(self) -> list["ReplayProbe"]:
        """The recorded probes."""
        return [ReplayProbe(self, probe) for probe in self.recording.header.probes]

    def uuid(self, recorded: str) -> str:
        """The UUID of a recorded GPU on this node."""
        if recorded not in self._uuids:
            namespace = uuid.uuid5(NAMESPACE, self.node)
            self._uuids[recorded] = mapped_uuid(namespace, recorded)
        return self._uuids[recorded]

    def position(self, ts_ms: int) -> tuple[int, int]:
        """The number of complete repetitions before a tick, and the recorded time of the tick."""
        if self.began_ms is None:
            self.began_ms = ts_ms
        cycle, offset = divmod(ts_ms - self.began_ms, self.recording.length_ms)
        return cycle, self.recording.first_ms + offset

    def shift_ms(self, cycle: int) -> int:
        """What to add to a recorded instant."""
        began_ms = self.recording.first_ms if self.began_ms is None else self.began_ms
        return began_ms - self.recording.first_ms + cycle * self.recording.length_ms

    def text(self, text: str) -> str:
        """A text with this node's names instead of the recorded ones."""
        for recorded, own in self._uuids.items():
            text = text.replace(recorded, own)
        name = re.escape(self.recording.header.node)
        return re.sub(rf"(?<![\w.-]){name}(?![\w.-])", lambda _: self.node, text)


class ReplayProbe:
    """Plays one recorded probe."""

    simulated = True
    blocking = False
    backend = "replay"

    def __init__(self, play: Play, recorded: RecordedProbe) -> None:
        recording = play.recording
        least_s = math.ceil(recording.interval_ms / 1000)
        known = {t: c for t, c in recorded.tables.items() if t in WIRE_TABLES}
        self.name = recorded.name
        self.tables: Mapping[str, int] = {t: max(c, least_s) for t, c in known.items()}
        self._play = play
        self._uuid = recorded.gpu_uuid and play.uuid(recorded.gpu_uuid)
        self._period_ms = {t: cadence_ms(c, recording.interval_ms) for t, c in known.items()}
        self._cycle = self._block = self._entry = 0
        self._inventory: Reading | None = None
        self._trouble: Failure | None = None
        self._waiting: dict[str, tuple[int, list[Row]]] = {}
        self._taken_ms: dict[str, int] = {}

    @property
    def gpu_uuid(self) -> str | None:
        """The GPU's UUID on the node that plays."""
        return self._uuid

    def describe(self) -> Reading:
        """The newest played inventory; before the first tick, the first one."""
        if self._inventory is None:
            first = self._play.recording.first_inventory(self.name)
            return {} if first is None else self._played(first)
        return self._inventory

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """The rows recorded since the last read: the newest of each due table, and all events.

        Raises ProbeError if the recorded probe failed.
        """
        cycle, at_ms = self._play.position(ts_ms)
        self._advance(cycle, at_ms)
        if self._trouble is not None:
            raise ProbeError(self._play.text(self._trouble.message), kind=self._trouble.kind)
        wanted = self.tables if due is None else due
        reading: dict[str, Sequence[Row]] = {}
        now_ms = at_ms + self._play.shift_ms(cycle)
        for table in wanted:
            if table in self._waiting:
                self._taken_ms[table], reading[table] = self._waiting.pop(table)
            elif table in UNCOUNTED or not self._is_missing(table, now_ms):
                reading[table] = []
        return reading

    def close(self) -> None:
        """Nothing to close: the probes share the file."""

    def _is_missing(self, table: str, now_ms: int) -> bool:
        """Whether rows of the table are overdue since the last ones."""
        last_ms = self._taken_ms.get(table)
        return last_ms is None or now_ms - last_ms >= self._period_ms.get(table, 0)

    def _advance(self, cycle: int, at_ms: int) -> None:
        """Play the entries up to a recorded time."""
        if cycle > self._cycle:
            if cycle == self._cycle + 1:
                self._advance(self._cycle, self._play.recording.last_ms)
            else:
                self._waiting.clear()  # after a pause longer than the recording, play only the newest
            self._cycle, self._block, self._entry = cycle, 0, 0
            self._trouble = None
        recording = self._play.recording
        while recording.begins_by(self._block, at_ms):
            entries = recording.block(self._block).get(self.name, ())
            for entry in entries[self._entry :]:
                if entry.ts_ms > at_ms:
                    return
                self._entry += 1
                self._take(entry)
            if not recording.begins_by(self._block + 1, at_ms):
                return
            self._block, self._entry = self._block + 1, 0

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, Failure):
            self._trouble = entry
        elif isinstance(entry, Described):
            self._inventory = self._played(entry)
        elif isinstance(entry, Samples):
            self._trouble = None
            at_ms = entry.ts_ms + self._play.shift_ms(self._cycle)
            for table, rows in self._played(entry).items():
                before = self._waiting.get(table, (0, []))[1] if table in UNCOUNTED else []
                self._waiting[table] = (at_ms, [*before, *rows])

    def _played(self, entry: Samples | Described) -> Reading:
        return {
            table: [self._row(table, row) for row in rows]
            for table, rows in entry.rows.items()
            if table in _COLUMNS
        }

    def _row(self, table: str, row: Row) -> Row:
        """A recorded row with this node's identities and times."""
        play, known = self._play, _COLUMNS[table]
        made = {name: value for name, value in row.items() if name in known}
        if self._cycle:
            for name, step in play.recording.steps.get(series_of(table, row), {}).items():
                value = made.get(name)
                if isinstance(value, (int, float)):
                    made[name] = value + self._cycle * step
        for name in ("gpu_uuid", "parent_gpu_uuid"):
            if isinstance(value := made.get(name), str):
                made[name] = play.uuid(value)
        for name in _INSTANTS[table] & made.keys():
            if isinstance(value := made[name], int):
                # A process that started before the recording is the same one at each repetition.
                made[name] = value + play.shift_ms(self._cycle if table == "events" else 0)
        if table == "events":
            for name in ("message", "details"):
                if isinstance(value := made.get(name), str):
                    made[name] = play.text(value)
        return made


def replay_name(number: int) -> str:
    """The name of a node that plays a recording, counted from 0."""
    return f"replay-{number + 1:04d}"


def replay_fleet(recording: Recording, names: Sequence[str]) -> list[tuple[str, list[ReplayProbe]]]:
    """The same recording on several nodes, by node name."""
    return [(name, Play(recording, name).probes()) for name in names]
