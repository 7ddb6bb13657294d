"""Which batches are stored already: pure bookkeeping behind exactly-once ingest.

For each (agent, boot) it keeps a floor, below which nothing will be sent again, and the sequences
at or above it that are stored, as ranges. Ranges close up as sequences arrive and vanish as the
floor rises, so a healthy agent costs one short row however long it runs.
"""

from bisect import bisect_right
from dataclasses import dataclass

RANGES_MAX = 4_096
"""Most separate ranges of one agent and boot. Only an agent that leaves holes and never says that
they are final comes near."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of one agent and boot.

    Every sequence below `floor` counts as stored; `ranges` (first, last; both included) are
    sorted, apart by at least one sequence, and begin at or above `floor`.
    """

    floor: int = 1
    ranges: tuple[Range, ...] = ()

    def has(self, sequence: int) -> bool:
        """Whether that batch is stored, or is never to be stored."""
        if sequence < self.floor:
            return True
        at = bisect_right(self.ranges, (sequence, 1 << 62)) - 1
        return at >= 0 and self.ranges[at][1] >= sequence

    def having(self, sequence: int) -> "Stored":
        """The same with that sequence stored."""
        if self.has(sequence):
            return self
        at = bisect_right(self.ranges, (sequence, 1 << 62))
        before, after = list(self.ranges[:at]), list(self.ranges[at:])
        first = last = sequence
        if before and before[-1][1] == sequence - 1:
            first = before.pop()[0]
        if after and after[0][0] == sequence + 1:
            last = after.pop(0)[1]
        return _settled(self.floor, (*before, (first, last), *after))

    def raised(self, floor: int) -> "Stored":
        """The same with nothing below `floor` to come; a floor never falls."""
        return _settled(floor, self.ranges) if floor > self.floor else self


def _settled(floor: int, ranges: tuple[Range, ...]) -> Stored:
    """Ranges below the floor dropped, and the floor raised over a range that it touches."""
    kept = [(max(first, floor), last) for first, last in ranges if last >= floor]
    if kept and kept[0][0] == floor:
        floor = kept.pop(0)[1] + 1
    return Stored(floor, tuple(kept))


def to_text(ranges: tuple[Range, ...]) -> str:
    """Ranges as they are kept in the database: `4709-4711 4713-4713`."""
    return " ".join(f"{first}-{last}" for first, last in ranges)


def from_text(text: str) -> tuple[Range, ...]:
    """The inverse of `to_text`."""
    pairs = (pair.partition("-") for pair in text.split())
    return tuple((int(first), int(last)) for first, _, last in pairs)
