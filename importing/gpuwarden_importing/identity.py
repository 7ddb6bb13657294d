"""Identifies GPUs in output of nvidia-smi that lacks the UUID."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuwarden_importing.model import UnreadableError, Value, place_uuid

GPUS_MAX = 64
"""Most GPUs of a node whose lines are identified by their order."""


class ReportedIdentity(NamedTuple):
    """What a line says about a GPU; `gpu` is its index."""

    node: str
    uuid: str | None
    pci_bus_id: Value
    gpu: Value


class Identities:
    """The GPUs of the lines that were read so far."""

    def __init__(self) -> None:
        self._uuids: dict[tuple[str, Value], str] = {}

    def learn(self, told: ReportedIdentity) -> None:
        """Remember the place of a GPU, as a lost GPU no longer reports its UUID."""
        if told.uuid:
            for place in (told.pci_bus_id, told.gpu):
                if place is not None:
                    self._uuids[told.node, place] = told.uuid

    def uuids(self, lines: Iterable[ReportedIdentity]) -> list[str | None]:
        """`uuid` of each line, after all lines were learned."""
        held = list(lines)
        for told in held:
            self.learn(told)
        return [self.uuid(told) for told in held]

    def uuid(self, told: ReportedIdentity) -> str | None:
        """The GPU's UUID, or a substitute; None when no GPU is named."""
        if told.uuid:
            return told.uuid
        # An index may change with a reboot; a bus id stays.
        place = told.gpu if told.pci_bus_id is None else told.pci_bus_id
        if place is None:
            return None
        known = self._uuids.get((told.node, place))
        return known or place_uuid(told.pci_bus_id, told.gpu, told.node)


class LineOrder:
    """Identifies GPUs by the order of lines, in a log that has only timestamps.

    nvidia-smi writes a line for each GPU by index, and then waits.
    """

    def __init__(self) -> None:
        self.gpus = 0
        """Number of GPUs in the log; 0: not known yet."""
        self._pause_ms = 0.0

    def indices(self, times: Sequence[int], *, is_last: bool) -> list[int | None]:
        """GPU index of each line; None: its round lacks a GPU, and which is not told.

        The lines of the last round wait for more lines unless `is_last`. Raises UnreadableError when the lines are
        ambiguous.
        """
        if not self.gpus and times:
            self.gpus, self._pause_ms = _rounds(times)
        if self.gpus == 1:
            return [0] * len(times)
        starts = [
            at
            for at in range(len(times))
            if not at or abs(times[at] - times[at - 1]) > self._pause_ms
        ]
        ends = [*starts[1:], len(times)] if is_last else starts[1:]
        indices: list[int | None] = []
        for start, end in zip(starts, ends, strict=False):
            if end - start > self.gpus:
                raise UnreadableError(_MIXED)
            indices += range(self.gpus) if end - start == self.gpus else [None] * (end - start)
        return indices


_MIXED = (
    "it has lines of several GPUs, and neither uuid, bus id nor index says which is whose: log with"
    " --query-gpu=timestamp,uuid,..."
)


def _rounds(times: Sequence[int]) -> tuple[int, float]:
    """Number of GPUs, and the gap between lines that starts a new round. Raises UnreadableError."""
    gaps = [abs(then - first) for first, then in pairwise(times)]
    if not gaps:
        return 1, 0.0
    # Gaps are some milliseconds within a round and longer between rounds: find the first large step.
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
    # One GPU, with a pause in the log.
    if most > GPUS_MAX or (len(sizes) < 4 and max(gap for gap in gaps if gap <= pause_ms) > 30):
        return 1, 0.0
    if sum(size == most for size in sizes[:-1] or sizes) < 0.8 * len(sizes[:-1] or sizes):
        raise UnreadableError(_MIXED)
    return most, pause_ms
