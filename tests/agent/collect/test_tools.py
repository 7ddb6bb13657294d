"""The tools of vendors as child processes: real programs, real pipes."""

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.tools import LineTool, output_of
from gpuwarden_agent.probe import ProbeError


def program(folder: Path, body: str) -> str:
    path = folder / "vendor-tool"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


def newest_within(tool: LineTool, expected: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if tool.newest(5).strip() == expected:
                return
        except ProbeError:
            pass
        assert time.monotonic() < end, f"{expected} was never printed"
        time.sleep(0.01)


def test_a_tool_runs_in_the_c_locale_without_input(tmp_path: Path) -> None:
    tool = program(tmp_path, "print(os.environ['LC_ALL'], repr(sys.stdin.read()), sys.argv[1])")
    assert output_of((tool, "$HOME"), 20) == "C '' $HOME\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("print('no device', file=sys.stderr); sys.exit(3)", "exit status 3: no device"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("print('x' * (5 << 20))", "printed 5242881 bytes"),
    ],
)
def test_a_tool_that_fails_is_named_with_its_last_words(
    body: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ProbeError, match=expected):
        output_of((program(tmp_path, body),), 20)


def test_a_tool_that_hangs_or_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="vendor-tool gave no answer within 0.2 s"):
        output_of((program(tmp_path, "time.sleep(60)"),), 0.2)
    with pytest.raises(ProbeError, match="none cannot be run: No such file"):
        output_of((str(tmp_path / "none"),), 1)


def test_the_newest_line_counts_and_cut_or_endless_lines_do_not(
    tmp_path: Path, clock: ManualClock
) -> None:
    body = (
        "print('one'); print('y' * (3 << 20)); print('two'); sys.stdout.write('cut');"
        "sys.stdout.flush(); time.sleep(60)"
    )
    tool = LineTool((program(tmp_path, body),), clock)
    try:
        newest_within(tool, "two")
        clock.advance(6)
        with pytest.raises(ProbeError, match="has printed no reading for 5 s"):
            tool.newest(5)
    finally:
        tool.close()
    assert tool.starts == 1


def test_a_tool_that_ends_is_started_again_after_pauses_that_grow(
    tmp_path: Path, clock: ManualClock
) -> None:
    tool = LineTool((program(tmp_path, "print('broken', file=sys.stderr); sys.exit(2)"),), clock)
    starts = []
    while len(starts) < 4:
        with pytest.raises(ProbeError, match="has printed no reading|ended with exit status 2"):
            tool.newest(5)
        if tool.starts > len(starts):
            starts.append(clock.monotonic())
        if tool._child is not None:
            tool._child.wait(20)
        else:
            clock.advance(0.5)
    tool.close()
    first, *longer = [later - earlier for earlier, later in pairwise(starts)]
    assert longer == [2 * first, 4 * first]
