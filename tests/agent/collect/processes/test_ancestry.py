"""Ancestors up to the root of a job or session, and names of signals."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.processes.made_up import process

from gpuwarden_agent.collect.processes.ancestry import (
    DEPTH_MAX,
    LOADERS_MAX,
    pids_text,
    signal_names,
    up_to_root,
)
from gpuwarden_agent.collect.processes.procfs import SignalMasks, parse_signals


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["torchrun", "slurm_script", "slurmstepd", "systemd"], 3),
        (["containerd-shim", "systemd"], 1),
        (["bash", "sshd-session", "sshd", "systemd"], 2),
        (["bash", "tmux: server", "systemd", "systemd"], 3),
        (["systemd"], 1),
        ([], 0),
    ],
)
def test_ancestors_end_at_what_started_the_job_the_container_or_the_session(
    names: list[str], shown: int
) -> None:
    above = [process(100 - depth, name=name) for depth, name in enumerate(names)]
    assert up_to_root(above) == above[:shown]


def test_of_many_ancestors_the_nearest_are_shown() -> None:
    above = [process(1000 - depth) for depth in range(50)]
    assert up_to_root(above) == above[:DEPTH_MAX]


@given(st.integers(0, 2**64 - 1))
def test_every_signal_of_a_mask_is_named_once(mask: int) -> None:
    named: list[int] = []
    for part in signal_names(mask).split(", "):
        ends = [_number(word) for word in part.split(" to ") if word != "none"]
        named += range(ends[0], ends[-1] + 1) if ends else []
    assert named == [bit + 1 for bit in range(64) if mask >> bit & 1]


def _number(name: str) -> int:
    if name.startswith("SIGRTMIN"):
        return int(signal.SIGRTMIN) + int(name.removeprefix("SIGRTMIN") or 0)
    return int(signal.Signals[name]) if name in signal.Signals.__members__ else int(name[3:])


def test_no_signal_has_a_word_of_its_own() -> None:
    assert signal_names(0) == "none"
    assert signal_names(1 << 14) == "SIGTERM"


@given(st.tuples(*[st.integers(0, 2**64 - 1)] * 5))
def test_masks_are_read_from_status_in_any_order(masks: tuple[int, int, int, int, int]) -> None:
    names = ("ShdPnd", "SigCgt", "SigPnd", "SigIgn", "SigBlk")
    lines = [f"{name}:\t{mask:016x}\n" for name, mask in zip(names, masks, strict=True)]
    shared, caught, own, ignored, blocked = masks
    read = parse_signals("Name:\tpython\n" + "".join(lines) + "CapInh:\t0000000000000000\n")
    assert read == SignalMasks(shared | own, blocked, ignored, caught)
    with pytest.raises(ValueError, match="no signals"):
        parse_signals("".join(lines[1:]))


@given(st.text())
def test_what_is_no_status_file_has_no_signals(text: str) -> None:
    with pytest.raises(ValueError, match="no signals"):
        parse_signals(text)


def test_pids_of_workers_are_in_order_and_not_without_end() -> None:
    workers = [process(pid) for pid in range(200, 100, -1)]
    assert pids_text(workers) == ", ".join(map(str, range(101, 101 + LOADERS_MAX)))
