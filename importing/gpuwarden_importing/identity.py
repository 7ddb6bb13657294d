"""Says which GPU is meant where nvidia-smi does not tell its UUID."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuwarden_importing.model import UnreadableError, Value, place_uuid

GPUS_MAX = 64
"""Most GPUs of a machine whose lines are told apart by their order."""


class ReportedIdentity(NamedTuple):
    """What is said of a GPU; `gpu` is its index."""

    node: str
    uuid: str | None
    pci_bus_id: Value
    gpu: Value


class Identities:
    """The GPUs of one file, as far as it has been read."""

    def __init__(self) -> None:
        self._uuids: dict[tuple[str, Value], str] = {}

    def learn(self, told: ReportedIdentity) -> None:
        """Remember where a GPU is: a GPU that is lost no longer says who it is."""
        if told.uuid:
            for place in (told.pci_bus_id, told.gpu):
                if place is not None:
                    self._uuids[told.node, place] = told.uuid

    def uuids(self, lines: Iterable[ReportedIdentity]) -> list[str | None]:
        """Each as by `uuid`; any of the lines may tell where a GPU is."""
        held = list(lines)
        for told in held:
            self.learn(told)
        return [self.uuid(told) for told in held]

    def uuid(self, told: ReportedIdentity) -> str | None:
        """The GPU's UUID, or what stands for it; None where no GPU is named."""
        if told.uuid:
            return told.uuid
        # An index may have been another GPU's before the machine was started anew; a bus id stays.
        place = told.gpu if told.pci_bus_id is None else told.pci_bus_id
        if place is None:
            return None
        known = self._uuids.get((told.node, place))
        return known or place_uuid(told.pci_bus_id, told.gpu, told.node)


class LineOrder:
    """Which GPU each line is of in a log that says nothing but times: nvidia-smi writes a line for each
    GPU by index, one after another, and then waits.
    """

    def __init__(self) -> None:
        self.gpus = 0
        """How many the log is of; 0: not known yet."""
        self._pause_ms = 0.0
        self._last_ms: int | None = None
        self._position = -1

    def indices(self, times: Sequence[int]) -> list[int]:
        """The index of the GPU of each line. Raises UnreadableError where they cannot be told apart."""
        if not self.gpus:
            self.gpus, self._pause_ms = _rounds(times)
        found = []
        for ts_ms in times:
            is_next = self._last_ms is None or abs(ts_ms - self._last_ms) > self._pause_ms
            self._position = 0 if is_next or self.gpus == 1 else self._position + 1
            self._last_ms = ts_ms
            if self._position >= self.gpus:
                raise UnreadableError(_MIXED)
            found.append(self._position)
        return found


_MIXED = (
    "it has lines of several GPUs, and neither uuid, bus id nor index says which is whose: log with"
    " --query-gpu=timestamp,uuid,..."
)


def _rounds(times: Sequence[int]) -> tuple[int, float]:
    """GPUs, and the gap between two lines above which another round begins. Raises UnreadableError."""
    gaps = [abs(then - first) for first, then in pairwise(times)]
    if not gaps:
        return 1, 0.0
    # Within a round a few milliseconds, between rounds many: the first great step of the sorted gaps.
    steps = sorted(gap + 5 for gap in gaps)
    pause_ms = next(
        ((low * high) ** 0.5 - 5 for low, high in pairwise(steps) if high >= 4 * low), None
    )
    if pause_ms is None:
        is_one_round = max(gaps) <= 30 and len(times) <= GPUS_MAX
        return (len(times), 31.0) if is_one_round else (1, 0.0)
    sizes = [1]
    for gap in gaps:
        if gap > pause_ms:
            sizes.append(1)
        else:
            sizes[-1] += 1
    most = max(sizes)
    # Of one GPU, with a pause in the log.
    if most > GPUS_MAX or (len(sizes) < 4 and max(gap for gap in gaps if gap <= pause_ms) > 30):
        return 1, 0.0
    if sum(size == most for size in sizes[:-1] or sizes) < 0.8 * len(sizes[:-1] or sizes):
        raise UnreadableError(_MIXED)
    return most, pause_ms
