"""Progress of jobs, by real files and sockets: whose it is, what is refused, and that nothing is fatal."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.schema import PROGRESS_COUNTED
from gpuwarden_agent.collect.processes.owner import user_name
from gpuwarden_agent.collect.progress import shares
from gpuwarden_agent.collect.progress import streams as streams_module
from gpuwarden_agent.collect.progress.folder import ProgressFolder
from gpuwarden_agent.collect.progress.lines import (
    BadLineError,
    ProgressValue,
    named_by_file,
    parse_line,
)
from gpuwarden_agent.collect.progress.probe import ProgressProbe, progress_probes
from gpuwarden_agent.collect.progress.shares import FILES_MAX, NAMELESS
from gpuwarden_agent.collect.progress.sockets import ProgressSocket
from gpuwarden_agent.collect.progress.streams import (
    NAMES_MAX,
    SENDERS_MAX,
    ProgressSender,
    ProgressStreams,
)
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.settings import AgentSettings


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"tokens 123456", ProgressValue("tokens", 123456)),
        (b"  loss\t-1.5e-3 \r\n", ProgressValue("loss", -0.0015)),
        (b"steps .5", ProgressValue("steps", 0.5)),
        (b"tokens:12|g", ProgressValue("tokens", 12)),
        (
            b"tokens:12|c|@0.5|#job:4711_3,rank:2,x:y",
            ProgressValue("tokens", 24, True, "4711_3", 2),
        ),
        (b"loss:-2|g|#job:ml/bert-0", ProgressValue("loss", -2, False, "ml/bert-0")),
        (b"", None),
        (b"# a comment", None),
    ],
)
def test_lines(line, said) -> None:
    assert parse_line(line, in_file=False) == said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"tokens", "not a name and a value"),
        (b"tokens 1 2", "not a name and a value"),
        (b"Tokens 1", "lower-case"),
        (b"a" * 41 + b" 1", "at most 40"),
        (b"tokens nan", "not a number"),
        (b"tokens inf", "not a number"),
        (b"tokens 1e999", "too large"),
        (b"tokens -1", "below 0"),
        (b"tokens 1_000", "not a number"),
        ("tokens ١".encode(), "not ASCII"),
        (b"x" * 201, "more than 200 bytes"),
        (b"tokens:1", "not StatsD's"),
        (b"tokens:1|ms", "other than g and c"),
        (b"tokens:1|g|@0.5", "other than c"),
        (b"loss:-1|c", "an increase is below 0"),
        (b"tokens:1|c|@0", "above 0"),
        (b"tokens:1|c|?", "unknown part"),
        (b"tokens:1|g|#job:../x", "neither Slurm's"),
        (b"tokens:1|g|#rank:x", "not a number"),
    ],
)
def test_bad_lines_are_named(line, why) -> None:
    with pytest.raises(BadLineError, match=why):
        parse_line(line, in_file=False)


@given(st.binary(max_size=260), st.booleans())
def test_any_bytes_are_a_value_nothing_or_a_bad_line(line, in_file) -> None:
    try:
        said = parse_line(line, in_file=in_file)
    except BadLineError as error:
        assert str(error)
        return
    if said is not None:
        assert said.value - said.value == 0, "finite"
        assert said.name not in PROGRESS_COUNTED or said.value >= 0
        assert not (in_file and said.is_increase)


@given(
    st.from_regex(r"[a-z][a-z0-9_]{0,39}", fullmatch=True),
    st.floats(0, 1e300),
    st.none() | st.integers(1, 10**17).map(str),
    st.none() | st.integers(0, 999_999),
)
def test_what_is_written_is_read(name, value, job, rank) -> None:
    assert parse_line(f"{name} {value!r}\n".encode(), in_file=True) == ProgressValue(name, value)
    tags = [*([f"job:{job}"] if job else []), *([] if rank is None else [f"rank:{rank}"])]
    statsd = f"{name}:{value!r}|c" + (f"|#{','.join(tags)}" if tags else "")
    assert parse_line(statsd.encode(), in_file=False) == ProgressValue(name, value, True, job, rank)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("4711", ("4711", None)),
        ("4711.3", ("4711", 3)),
        ("4711_2.0", ("4711_2", 0)),
        ("ml_bert-0", ("ml/bert-0", None)),
        ("ml_bert-0.1", ("ml/bert-0", 1)),
        ("notes.txt", None),
        ("4711.tmp", None),
    ],
)
def test_names_of_files(name, named) -> None:
    found = named_by_file(name)
    assert (found and (found.job, found.rank)) == named


class Watched:
    """A folder and its probe."""

    def __init__(self, path: Path, name_of: Callable[[int], str] = user_name) -> None:
        self.path = path
        path.mkdir()
        path.chmod(0o1777)
        self.clock = ManualClock(SystemClock().now())
        self.streams = ProgressStreams()
        folder = ProgressFolder(path, self.streams, name_of)
        self.probe = ProgressProbe(self.streams, self.clock, folder, None)

    def read(self) -> dict[tuple[Any, ...], Any]:
        """Values by job and name."""
        self.reading = self.probe.read(0)
        return {
            (row.get("job"), row["name"]): row["value"] for row in self.reading["progress_samples"]
        }


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "progress")


def test_a_file_that_is_appended_to(watched: Watched) -> None:
    file = watched.path / "4711.0"
    assert watched.read() == {}
    file.write_text("tokens 10\ntokens 20\nloss 2.5\ntok")
    assert watched.read() == {("4711", "tokens"): 20, ("4711", "loss"): 2.5}
    (row,) = [row for row in watched.reading["progress_samples"] if row["name"] == "tokens"]
    owner = row.pop("username")
    assert owner in ("root", os.environ.get("USER"), str(os.getuid())) or owner
    assert row == {
        "source": "file",
        "sender": "4711.0",
        "job": "4711",
        "rank": 0,
        "name": "tokens",
        "value": 20.0,
    }
    assert watched.read() == {}, "nothing is new"
    with file.open("a") as more:
        more.write("ens 30\n")
    assert watched.read() == {("4711", "tokens"): 30}
    with file.open("a") as more:
        more.write("x\n" * 9000 + "tokens 40\n")
    assert watched.read() == {("4711", "tokens"): 40}, "the end of a file is enough"


def test_a_file_that_is_written_again(watched: Watched) -> None:
    file = watched.path / "4711"
    for value in (998, 999, 1000, 7, 8):
        file.write_text(f"tokens {value}\n")
        os.utime(file, ns=(value, value))
        assert watched.read() == {("4711", "tokens"): value}
    (watched.path / "new").write_text("tokens 9\n")
    (watched.path / "new").rename(file)
    assert watched.read() == {("4711", "tokens"): 9}
    file.unlink()
    assert watched.read() == {}


def test_what_is_not_a_jobs_own_file_is_refused_and_named(watched: Watched, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("tokens 1\n")
    (watched.path / "1").symlink_to(secret)
    (watched.path / "2").hardlink_to(secret)
    os.mkfifo(watched.path / "3")
    (watched.path / "4").mkdir()
    (watched.path / "readme").write_text("tokens 1\n")
    (watched.path / ".5").write_text("tokens 1\n")
    (watched.path / "6").write_text(
        "tokens many\ntokens 6\n\xff 1\ntokens:1|c\n", encoding="latin-1"
    )
    assert watched.read() == {("6", "tokens"): 6}
    (event,) = watched.reading["events"]
    assert event["kind"] == "progress_refused"
    assert watched.probe.failed == {
        "a file is a link": 1,
        "a file has a second name (hard link)": 1,
        "a file is not a regular one": 2,
        "a file is not named by a job: 4711, 4711.RANK, namespace_pod": 1,
        "a value is not a number": 1,
        "a line is not ASCII": 1,
        "a file has increases (c): write totals": 1,
    }
    assert str(event["message"]).startswith(
        "8 lines or files of progress were refused: a file is not a regular one (2 times)"
    )
    # Refused files are not read again, except for links; the next event comes after a minute.
    assert watched.read() == {}
    assert "events" not in watched.reading
    watched.clock.advance(61)
    watched.read()
    (event,) = watched.reading["events"]
    assert (
        event["message"] == "2 lines or files of progress were refused: a file is a link (2 times)"
    )


def test_limits_of_a_folder(watched: Watched) -> None:
    for number in range(FILES_MAX + 1):
        (watched.path / str(number + 1)).write_text("tokens 1\n")
    (watched.path / "1").write_text("".join(f"n{number} 1\n" for number in range(NAMES_MAX + 2)))
    watched.path.chmod(0o777)
    watched.read()
    reasons = set(watched.probe.failed)
    assert f"{user_name(os.getuid())}: more files than a share of {FILES_MAX}" in reasons
    assert any("no sticky bit" in reason for reason in reasons)


USERS = {1001: "ada", 1002: "bob", 1003: "eve"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of several users")


@pytest.fixture
def shared(tmp_path: Path) -> Watched:
    """A folder of a host with several accounts."""
    return Watched(tmp_path / "progress", lambda uid: USERS.get(uid, str(uid)))


def write(shared: Watched, uid: int, *names: str) -> None:
    for name in names:
        (shared.path / name).write_text("tokens 1\n")
        os.chown(shared.path / name, uid, uid)


@needs_root
def test_thousands_of_files_of_one_user_hide_nobody_elses(shared: Watched) -> None:
    write(shared, 1002, "1", "2")
    write(shared, 1001, *(f"9{number}" for number in range(1000)))
    write(shared, 1003, "3")
    assert {("1", "tokens"), ("2", "tokens"), ("3", "tokens")} <= shared.read().keys()
    assert len(shared.reading["progress_samples"]) == FILES_MAX
    assert shared.probe.failed == {f"ada: more files than a share of {FILES_MAX}": 1003 - FILES_MAX}
    for path in shared.path.glob("9*"):
        path.unlink()
    write(shared, 1001, "5")
    assert shared.read() == {("5", "tokens"): 1}
    assert shared.probe.failed.total() == 1003 - FILES_MAX, "counted once a minute at most"


@needs_root
def test_uids_without_an_account_have_one_share_together(shared: Watched) -> None:
    """A user can give files to thousands of uids (subuid)."""
    for number in range(2 * FILES_MAX):
        write(shared, 100_000 + number, f"9{number}")
    write(shared, 1002, *(str(number) for number in range(1, FILES_MAX // 2 + 1)))
    assert len([job for job, _ in shared.read() if not job.startswith("9")]) >= FILES_MAX // 2 - 11
    (reason,) = shared.probe.failed
    assert reason.startswith(NAMELESS)


@needs_root
def test_a_folder_that_is_larger_than_a_reading_is_read_in_several(
    shared: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "NAMES_A_READING", 20)
    write(shared, 1001, *(f"9{number}" for number in range(70)))
    write(shared, 1002, "1")
    write(shared, 1001, *(f"8{number}" for number in range(70)))
    readings = [shared.read() for _ in range(8)]
    assert [reading[key] for reading in readings for key in reading if key == ("1", "tokens")] == [
        1
    ]


def test_who_has_most_senders_makes_room_for_others() -> None:
    streams = ProgressStreams()
    tokens = ProgressValue("tokens", 1)
    for number in range(SENDERS_MAX + 1):
        streams.take(ProgressSender("unix", f"pid {number}", "ada"), tokens, float(number))
    for number in range(3):
        streams.take(ProgressSender("unix", f"pid {90_000 + number}", "carl"), tokens, 0.0)
    streams.take(ProgressSender("unix", "pid 9999", "bob"), tokens, 0.0)
    streams.take(ProgressSender("unix", "pid 9998", "ada"), tokens, 2000.0)
    rows = streams.rows()
    assert ("bob", "pid 9999") in {(row["username"], row["sender"]) for row in rows}
    assert len([row for row in rows if row["username"] == "carl"]) == 3
    assert streams.refused() == {
        f"{SENDERS_MAX} senders report already": 2,
        f"ada: more senders than a share of {SENDERS_MAX}": 4,
    }


def test_lines_of_one_user_are_limited_and_those_of_others_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams_module, "LINES_MAX", 10)
    streams = ProgressStreams()
    assert streams.admits("ada", 10) and not streams.admits("ada", 2)
    assert streams.admits("bob", 10)
    streams.rows()
    assert streams.admits("ada", 10)
    assert streams.refused() == {
        "ada: more than 10 lines between two readings": 2,
    }


def test_a_folder_that_is_not_there_fails_the_reading_alone(tmp_path: Path) -> None:
    settings = AgentSettings(progress_dir=tmp_path / "none")
    (probe,) = progress_probes(settings, SystemClock())
    with pytest.raises(ProbeError, match="No such file"):
        probe.read(0)
    (tmp_path / "none").mkdir()
    assert probe.read(0) == {"progress_samples": []} or probe.failed
    assert progress_probes(AgentSettings(), SystemClock()) == []


def test_limits_of_streams() -> None:
    streams = ProgressStreams()
    one = ProgressSender("unix", "pid 1", "ada")
    for number in range(NAMES_MAX + 3):
        streams.take(one, ProgressValue(f"n{number}", 1), 0.0)
    assert len(streams.rows()) == NAMES_MAX
    for number in range(2, SENDERS_MAX + 3):
        sender = ProgressSender("unix", f"pid {number}", "ada")
        streams.take(sender, ProgressValue("tokens", 1), 0.0)
    assert streams.refused() == {
        f"a sender has more than {NAMES_MAX} names": 3,
        f"{SENDERS_MAX} senders report already": 2,
    }
    streams.rows()
    streams.take(
        ProgressSender("unix", "pid 9999", "ada"),
        ProgressValue("tokens", 1, is_increase=True),
        4000.0,
    )
    streams.take(
        ProgressSender("unix", "pid 9999", "ada"),
        ProgressValue("tokens", 2, is_increase=True),
        4000.0,
    )
    assert [row["value"] for row in streams.rows()] == [3], (
        "who said nothing for an hour makes room"
    )
    streams.take(
        ProgressSender("unix", "pid 9999", "bob"),
        ProgressValue("tokens", 2, is_increase=True),
        4000.0,
    )
    assert [row["value"] for row in streams.rows()] == [2], "another owner of the pid begins at 0"


def until(read: Callable[[], Any]) -> Any:
    """The first answer that is not empty, within 10 s."""
    for _ in range(1000):
        if found := read():
            return found
        time.sleep(0.01)
    raise AssertionError("nothing came")


@pytest.fixture
def streams() -> ProgressStreams:
    return ProgressStreams()


@pytest.fixture
def at_path(tmp_path: Path, streams: ProgressStreams) -> Iterator[Path]:
    path = tmp_path / "progress.sock"
    # One of a run before.
    old = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    old.bind(str(path))
    old.close()
    proc = tmp_path / "proc"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / str(os.getpid()) / "cgroup").write_text(
        "0::/system.slice/slurmstepd.scope/job_4711/step_0\n"
    )
    made = ProgressSocket(
        path, streams, SystemClock(), proc=proc, name_of=lambda uid: f"user {uid}"
    )
    made.open()
    made.open()
    yield path
    made.close()
    assert not path.exists()


def test_a_unix_socket_knows_who_sends(at_path: Path, streams: ProgressStreams) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(str(at_path))
        client.send(b"tokens:5|c|#job:999,rank:1\nsteps:1|g|#rank:1\nbad\n")
        client.send(b"tokens:7|c|#rank:1")
    rows = list[dict[str, Any]]()

    def values() -> dict[str, float]:
        rows.extend(streams.rows())
        return {row["name"]: row["value"] for row in rows}

    until(lambda: values() == {"tokens": 12, "steps": 1})
    assert {(row["username"], row["job"], row["sender"]) for row in rows} == {
        (f"user {os.getuid()}", "4711", f"pid {os.getpid()}")
    }, "its cgroup names its job, not its tag"
    assert streams.refused() == {"a line has not a name and a value: write tokens 123456": 1}
    assert at_path.stat().st_mode & 0o777 == 0o666


def test_a_datagram_has_limits(at_path: Path, streams: ProgressStreams) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(str(at_path))
        client.send(b"tokens:5|g\n" * 60)
        client.send(b"x" * 9000)
        client.send(b"steps:7|g")
    until(lambda: [row for row in streams.rows() if row["name"] == "steps"])
    assert streams.refused() == {
        "a datagram has more than 50 lines": 1,
        "a datagram has more than 8192 bytes": 1,
    }


def test_a_socket_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    settings = AgentSettings(progress_socket=tmp_path / "file")
    (probe,) = progress_probes(settings, SystemClock())
    with pytest.raises(ProbeError, match="cannot be opened: Address already in use"):
        probe.read(0)
    assert (tmp_path / "file").read_text() == "mine"
    probe.close()
