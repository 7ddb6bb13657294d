"""Keeps the newest sample of each table and key, bounded in time and number, and counts Xids.

Used on the event loop only. A sample that is too old for its table is removed; inventory stays until it
is replaced. Time is the wall clock's, as in the rows: a row from the future, written before the clock
was set back, counts as old, too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock, to_ms
from gpuwarden.metrics import METRICS
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.exporter.sample_cache import CachedSample, followed, keep_ms
from gpuwarden_agent.probe import Row, Value

ROWS_MAX = 2048
"""Keys of all sample tables together: 16 GPUs in 7 MIG devices each, their 300 links, 1,400 processes."""
INVENTORY_MAX = 256
KINDS_MAX = 512
"""Most pairs of GPU and code."""


ALLOCATION_KEEP_S = 30.0
"""An allocation that is not reported for three periods has ended."""

WHOLE_TICK_TABLES = frozenset({"process_samples"})
"""Tables whose keys come and go: a key that is not in the newest reading has ended and is not shown."""

_KEYS = {
    name: tuple(column for column in WIRE_TABLES[name].key if column != "ts")
    for name in (*METRICS, "gpus", "nodes")
}

_Key = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class XidKind:
    """Key of the counts of Xids."""

    node: Value
    gpu: Value
    gpu_uuid: Value
    """None if no GPU is known for the bus id."""
    pci_bus_id: Value
    """Only if the UUID is not known."""
    simulated: Value
    code: int | None
    """None if the event has none."""


class XidCounts:
    """Counts Xids by GPU and code."""

    def __init__(self) -> None:
        self.by_kind: Counter[XidKind] = Counter()
        self.last: dict[Value, XidKind] = {}
        """The last Xid with a code of each GPU, by UUID."""

    def take(self, row: Row) -> bool:
        """Count an `events` row of kind xid; False: there are too many keys already."""
        kind = _kind(row)
        if kind not in self.by_kind and len(self.by_kind) >= KINDS_MAX:
            return False
        self.by_kind[kind] += 1
        if kind.code is not None and kind.gpu_uuid is not None:
            self.last[kind.gpu_uuid] = kind
        return True


def _kind(row: Row) -> XidKind:
    details = _details(row)
    code, gpu_uuid = details.get("xid"), row.get("gpu_uuid")
    return XidKind(
        node=row["node"],
        gpu=row.get("gpu"),
        gpu_uuid=gpu_uuid,
        pci_bus_id=details.get("pci_bus_id") if gpu_uuid is None else None,
        simulated=row.get("simulated"),
        code=code if type(code) is int else None,
    )


def _details(row: Row) -> dict[str, Value]:
    """Scalars of the details, which are a JSON object."""
    try:
        details = json.loads(str(row.get("details")))
    except ValueError:
        return {}
    if not isinstance(details, dict):
        return {}
    return {name: v for name, v in details.items() if not isinstance(v, dict | list)}


class Latest:
    """The newest rows."""

    def __init__(self, clock: Clock, *, interval_s: float = 1.0, rows_max: int = ROWS_MAX) -> None:
        """`interval_s`: seconds between the agent's ticks."""
        self._clock = clock
        self._began_s = clock.monotonic()
        self._rows_max = rows_max
        self._keep_ms = {table: keep_ms(table, interval_s) for table in METRICS}
        self._samples: dict[str, dict[_Key, CachedSample]] = {table: {} for table in METRICS}
        self._newest_ms: dict[str, int] = {}
        self._inventory: dict[str, dict[_Key, Row]] = {"gpus": {}, "nodes": {}}
        self._owners: dict[Value, list[Row]] = {}
        """Rows of the newest reading of a GPU's allocations."""
        self.xids = XidCounts()
        """Xids that happened since the agent's start."""
        self.rows_dropped = 0
        """Rows that were dropped because there were too many keys."""

    def take(self, table: str, rows: Iterable[Row]) -> None:
        """Add checked rows of a wire table, as they enter a batch; of events only Xids are counted.

        The rows must not be changed afterwards. A row older than the stored one is ignored.
        """
        if table in self._samples:
            now_ms = to_ms(self._clock.now())
            for row in rows:
                self._take_sample(table, row, now_ms)
        elif table in self._inventory:
            for row in rows:
                self._take_inventory(table, row)
        elif table == "allocation_samples":
            for row in rows:
                self._take_allocation(row)
        elif table == "events":
            for row in rows:
                self._take_event(row)

    def samples(self, table: str) -> list[CachedSample]:
        """The newest sample of each key that is not too old, with its slow columns filled in."""
        now_ms = to_ms(self._clock.now())
        self._forget(table, now_ms)
        cached = [k.at(now_ms) for k in self._samples[table].values()]
        if table in WHOLE_TICK_TABLES and cached:
            newest_ms = max(k.ts_ms for k in cached)
            cached = [k for k in cached if k.ts_ms == newest_ms]
        return cached

    def gpu(self, gpu_uuid: Value) -> Row:
        """Inventory row of a GPU; empty where it is not known (yet)."""
        return self._inventory["gpus"].get((gpu_uuid,), {})

    def gpus(self) -> Sequence[Row]:
        """Inventory rows of all GPUs and MIG devices."""
        return list(self._inventory["gpus"].values())

    def owner(self, gpu_uuid: Value) -> Row:
        """The row of allocation_samples of the GPU's owner; empty: it has none, or several share it."""
        owners = self._owners.get(gpu_uuid, [])
        if len(owners) != 1 or abs(self.age_s(_stamp_ms(owners[0]))) > ALLOCATION_KEEP_S:
            return {}
        return owners[0]

    def node(self, name: Value) -> Row:
        """Inventory row of a node; empty where it is not known (yet)."""
        return self._inventory["nodes"].get((name,), {})

    def age_s(self, ts_ms: int) -> float:
        """Seconds since an instant; negative where the wall clock was set back meanwhile."""
        return (to_ms(self._clock.now()) - ts_ms) / 1000

    def ages_s(self) -> dict[str, float]:
        """Age of the newest sample of each table that ever had one, removed samples included."""
        return {table: self.age_s(ts_ms) for table, ts_ms in self._newest_ms.items()}

    def _take_sample(self, table: str, row: Row, now_ms: int) -> None:
        ts_ms = _stamp_ms(row)
        newest_ms = self._newest_ms.get(table)
        if _supersedes(ts_ms, newest_ms, now_ms + self._keep_ms[table]):
            self._newest_ms[table] = ts_ms
            self._forget(table, now_ms)
        if not self._is_live(table, ts_ms, now_ms):
            return
        cached = self._samples[table]
        key = _key(table, row)
        held = cached.get(key)
        if held is None and self._is_full(now_ms):
            self.rows_dropped += 1
        elif held is None or ts_ms > held.ts_ms:
            cached[key] = followed(held, table, row, ts_ms)

    def _take_inventory(self, table: str, row: Row) -> None:
        rows = self._inventory[table]
        rows.pop(_key(table, row), None)
        rows[_key(table, row)] = row
        if len(rows) > INVENTORY_MAX:
            del rows[next(iter(rows))]

    def _take_allocation(self, row: Row) -> None:
        gpu_uuid = row["gpu_uuid"]
        held = self._owners.get(gpu_uuid)
        if held is None and len(self._owners) >= INVENTORY_MAX:
            del self._owners[next(iter(self._owners))]
        if held is None or _stamp_ms(row) > _stamp_ms(held[0]):
            self._owners[gpu_uuid] = [row]
        elif _stamp_ms(row) == _stamp_ms(held[0]) and len(held) < 2:
            held.append(row)

    def _take_event(self, row: Row) -> None:
        if row["kind"] != "xid":
            return
        # The kernel's log starts at the boot, and backfill before that.
        is_new = self.age_s(_stamp_ms(row)) <= self._clock.monotonic() - self._began_s
        if is_new and not self.xids.take(row):
            self.rows_dropped += 1

    def _forget(self, table: str, now_ms: int) -> None:
        cached = self._samples[table]
        for key in [key for key, k in cached.items() if not self._is_live(table, k.ts_ms, now_ms)]:
            del cached[key]

    def _is_live(self, table: str, ts_ms: int, now_ms: int) -> bool:
        return abs(now_ms - ts_ms) <= self._keep_ms[table]

    def _is_full(self, now_ms: int) -> bool:
        if sum(map(len, self._samples.values())) < self._rows_max:
            return False
        for table in self._samples:
            self._forget(table, now_ms)
        return sum(map(len, self._samples.values())) >= self._rows_max


def _key(table: str, row: Row) -> _Key:
    return tuple([row.get(name) for name in _KEYS[table]])


def _stamp_ms(row: Row) -> int:
    ts_ms = row["ts"]
    assert isinstance(ts_ms, int)
    return ts_ms


def _supersedes(ts_ms: int, held_ms: int | None, latest_ms: int) -> bool:
    """Whether `ts_ms` is newer than `held_ms`, which does not count if it is after `latest_ms`."""
    return held_ms is None or ts_ms > held_ms or held_ms > latest_ms
