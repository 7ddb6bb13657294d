"""Lines of a log belong to the GPU that they name, in whatever way."""

import pytest

from gpuwarden_importing.identity import Identities, LineOrder, ReportedIdentity
from gpuwarden_importing.model import UnreadableError


@pytest.mark.parametrize(
    ("told", "uuid"),
    [
        (ReportedIdentity("n1", "GPU-1", None, None), "GPU-1"),
        (ReportedIdentity("n1", None, "0000:3b:00.0", 7), "GPU-1"),
        (ReportedIdentity("n1", None, None, 2), "GPU-1"),
        (ReportedIdentity("n1", None, None, 3), "gpu-3@n1"),
        (ReportedIdentity("n1", None, "0000:5b:00.0", 2), "pci-0000:5b:00.0@n1"),
        (ReportedIdentity("n2", None, "0000:3b:00.0", 2), "pci-0000:3b:00.0@n2"),
        (ReportedIdentity("n1", None, None, None), None),
    ],
)
def test_a_line_is_of_the_gpu_that_was_at_its_place(
    told: ReportedIdentity, uuid: str | None
) -> None:
    known = ReportedIdentity("n1", "GPU-1", "0000:3b:00.0", 2)
    assert Identities().uuids([told, known])[0] == uuid


def test_what_was_read_before_is_remembered() -> None:
    gpus = Identities()
    gpus.learn(ReportedIdentity("n1", "GPU-1", None, 0))
    assert gpus.uuids([ReportedIdentity("n1", None, None, 0)]) == ["GPU-1"]


ROUND = [0, 2, 4, 7]
LOGS = [
    (4, [1000 * n + offset for n in range(30) for offset in ROUND], "four GPUs, a second apart"),
    (4, [1000 * n + offset for n in range(30) for offset in ROUND][:-2], "cut in its last round"),
    (4, ROUND, "one round"),
    (4, [1000 * n for n in range(5) for _ in ROUND], "times of whole seconds"),
    (4, [100 * n + offset + (n > 9) * 3_600_000 for n in range(30) for offset in ROUND], "a pause"),
    (1, [1000 * n + n % 3 for n in range(50)], "one GPU"),
    (1, [100 * n + (n > 60) * 3_600_000 for n in range(100)], "one GPU and a pause"),
    (1, [5], "one line"),
]


@pytest.mark.parametrize(("gpus", "times"), [log[:2] for log in LOGS], ids=[log[2] for log in LOGS])
def test_lines_that_name_no_gpu_are_told_apart_by_their_order(gpus: int, times: list[int]) -> None:
    expected: list[int | None] = [n % gpus for n in range(len(times))]
    if short := len(times) % gpus:
        expected[-short:] = [None] * short
    assert LineOrder().indices(times, is_last=True) == expected
    half = len(times) // 2
    if half >= 2 * gpus:
        order = LineOrder()
        first = order.indices(times[:half], is_last=False)
        assert first + order.indices(times[len(first) :], is_last=True) == expected


def test_a_round_that_lacks_a_gpu_is_of_none() -> None:
    rounds = [ROUND] * 9 + [[0, 4, 7]] + [ROUND]
    times = [1000 * n + offset for n, offsets in enumerate(rounds) for offset in offsets]
    indices = LineOrder().indices(times, is_last=True)
    assert indices[-8:] == [3, None, None, None, 0, 1, 2, 3]


def test_lines_in_no_order_are_refused() -> None:
    times = [1000 * n + offset for n in range(30) for offset in ROUND[: 2 + n % 3]]
    with pytest.raises(UnreadableError, match="neither uuid, bus id nor index"):
        LineOrder().indices(times, is_last=True)
    known = LineOrder()
    known.indices([1000 * n + offset for n in range(9) for offset in ROUND[:2]], is_last=True)
    with pytest.raises(UnreadableError, match="lines of several GPUs"):
        known.indices([60_000 + offset for offset in ROUND], is_last=True)
