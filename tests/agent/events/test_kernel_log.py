"""The kernel's log as events: each error once, with its own time, across restarts and overruns."""

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden_agent.events.kernel_log import (
    EVENTS_MAX,
    NAMES_WAIT_S,
    DevKmsg,
    KmsgProbe,
    Position,
    Record,
    kmsg_probe,
    load_position,
    parse_records,
    save_position,
)
from gpuwarden_agent.events.xid_ledger import XidLedger, XidReport
from gpuwarden_agent.probe import ProbeError, Row

LOGS = Path(__file__).parents[4] / "shared" / "data" / "kernel_log"
NOW = datetime(2026, 7, 14, 8, 12, 38, tzinfo=UTC)
NOW_US = 1_000_000_000
"""What the kernel's clock says at NOW: a ManualClock begins at 1000 s."""
XID_43 = "NVRM: Xid (PCI:0000:3b:00): 43, pid=9, name=python3, Ch 00000008"
XID_79 = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
FELL_OFF = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."


class FakeLog:
    """A /dev/kmsg: keeps records, may lose the oldest, may fail."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.at = 0
        self.failures: list[OSError] = []
        self.is_closed = False

    def write(self, text: str, us: int = NOW_US, sequence: int | None = None) -> None:
        if sequence is None:
            sequence = self.records[-1][0] + 1 if self.records else 0
        self.records.append((sequence, us, text))

    def lose(self, number: int) -> None:
        del self.records[:number]
        self.failures.append(BrokenPipeError(errno.EPIPE, "overrun"))
        self.at = 0

    def read(self) -> bytes | None:
        if self.failures:
            raise self.failures.pop(0)
        if self.at >= len(self.records):
            return None
        sequence, us, text = self.records[self.at]
        self.at += 1
        return f"4,{sequence},{us},-;{text}\n SUBSYSTEM=pci\n".encode()

    def close(self) -> None:
        self.is_closed = True

    def opened_again(self) -> "FakeLog":
        """The same records from the start, as a new open gives."""
        again = FakeLog()
        again.records = list(self.records)
        return again


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


def probe_of(log: FakeLog, state_dir: Path, clock: ManualClock | None = None, **more) -> KmsgProbe:
    more.setdefault("gpus", {"0000:3b:00.0": (3, "GPU-3")})
    return KmsgProbe(
        state_dir, clock or ManualClock(NOW), more.pop("gpus"), boot="boot-1", source=log, **more
    )


def xids(probe: KmsgProbe) -> list[int]:
    return [json.loads(row["details"]).get("xid") for row in probe.read(0).get("events", ())]


def test_an_event_has_the_time_of_its_record_not_of_the_reading(log, tmp_path) -> None:
    log.write(XID_43, NOW_US - 90_000_000)
    log.write("usb 1-1: new device", NOW_US - 1_000_000)
    log.write(XID_79, NOW_US - 250_000)
    events = probe_of(log, tmp_path).read(0)["events"]
    assert [row["ts"] for row in events] == [to_ms(NOW) - 90_000, to_ms(NOW) - 250]
    assert [row["kind"] for row in events] == ["xid", "xid"]
    assert (events[0]["gpu"], events[0]["gpu_uuid"]) == (3, "GPU-3")
    assert json.loads(events[1]["details"])["kmsg_sequence"] == 2


def test_events_are_in_order_where_stamps_of_cpus_are_not(log, tmp_path) -> None:
    for us in (NOW_US - 5_000, NOW_US - 9_000, NOW_US + 7_000):
        log.write(XID_43, us)
    times = [row["ts"] for row in probe_of(log, tmp_path).read(0)["events"]]
    assert times == sorted(times)
    assert times[-1] <= to_ms(NOW), "nothing happens after it is read"


def test_a_kernel_clock_that_drifted_does_not_move_what_is_new(log, tmp_path) -> None:
    clock = ManualClock(NOW)
    probe = probe_of(log, tmp_path, clock)
    probe.read(0)
    clock.advance(1)
    log.write(XID_43, NOW_US - 60_000_000)
    assert probe.read(0)["events"][0]["ts"] == to_ms(NOW)


def test_a_kill_before_the_next_call_repeats_rather_than_misses(log, tmp_path) -> None:
    killed = probe_of(log, tmp_path)
    log.write(XID_43)
    assert xids(killed) == [43]
    assert xids(probe_of(log.opened_again(), tmp_path)) == [43]
    killed.read(0)
    assert xids(probe_of(log.opened_again(), tmp_path)) == []


def test_another_boot_begins_with_its_own_records(log, tmp_path) -> None:
    save_position(tmp_path / "kmsg.json", Position("boot-0", 5000, 1))
    log.write(XID_43)
    assert xids(probe_of(log, tmp_path)) == [43]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"boot_id": "boot-1"}', "\x00\x00", "null"])
def test_a_position_that_is_not_one_is_no_position(tmp_path, content: str) -> None:
    (tmp_path / "kmsg.json").write_text(content)
    assert load_position(tmp_path / "kmsg.json", "boot-1") is None


def test_a_position_that_cannot_be_saved_stops_nothing(log, tmp_path, caplog) -> None:
    (tmp_path / "file").write_text("")
    probe = probe_of(log, tmp_path / "file")
    for _ in range(3):
        log.write(XID_43)
        assert xids(probe) == [43]
    assert len([r for r in caplog.records if "not saved" in r.message]) == 1


def test_records_overwritten_unread_are_an_event_with_their_number(log, tmp_path) -> None:
    probe = probe_of(log, tmp_path)
    log.write("one", NOW_US - 30_000_000)
    probe.read(0)
    for _ in range(5):
        log.write("lost")
    log.write(XID_43)
    log.lose(6)
    overrun, xid = probe.read(0)["events"]
    assert overrun["kind"] == "kernel_log_overrun"
    assert overrun["severity"] == "warning"
    assert overrun["duration_seconds"] == 30
    assert overrun["message"].startswith("5 records of the kernel's log, of 30 s, were overwritten")
    assert json.loads(overrun["details"]) == {
        "records": 5, "after_sequence": 0, "before_sequence": 6,
    }  # fmt: skip
    assert xid["kind"] == "xid"


def test_records_overwritten_while_the_agent_was_away_are_told_too(log, tmp_path) -> None:
    save_position(tmp_path / "kmsg.json", Position("boot-1", 10, NOW_US - 60_000_000))
    log.write("later", sequence=100)
    (overrun,) = probe_of(log, tmp_path).read(0)["events"]
    assert json.loads(overrun["details"])["records"] == 89


def test_the_first_start_of_all_does_not_complain_of_what_the_boot_wrote_before(log, tmp_path):
    log.write("first that is left", sequence=4000)
    log.failures.append(BrokenPipeError(errno.EPIPE, "overrun"))
    assert probe_of(log, tmp_path).read(0) == {"events": []}


def test_a_gpu_that_falls_off_the_bus_is_one_event_however_it_is_told(log, tmp_path) -> None:
    probe = probe_of(log, tmp_path)
    log.write(XID_79)
    log.write(FELL_OFF)
    log.write(
        "NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: fallen off the bus and is not responding"
    )
    assert xids(probe) == [79]
    log.write(FELL_OFF.replace("3b", "9b"))
    log.write(XID_79.replace("3b", "9b"))
    assert xids(probe) == [79]
    log.write(FELL_OFF, NOW_US + 11_000_000)
    assert xids(probe) == [79]


def nvml_says(ledger: XidLedger, now_s: float, code: int) -> list[Row]:
    row: Row = {"details": json.dumps({"xid": code, "source": "nvml"})}
    return ledger.take_events([XidReport("0000:3b:00.0", code, now_s - 1, now_s, row)], now_s)


@pytest.mark.parametrize("line", [XID_79, FELL_OFF])
@pytest.mark.parametrize("is_nvml_first", [True, False])
def test_what_nvml_tells_too_is_the_lines_event(log, tmp_path, line: str, is_nvml_first: bool):
    clock, ledger = ManualClock(NOW), XidLedger(has_log=True)
    probe = probe_of(log, tmp_path, clock, ledger=ledger)
    probe.read(0)
    log.write(line)
    told = []
    if is_nvml_first:
        told += nvml_says(ledger, clock.monotonic(), 79)
    told += probe.read(0)["events"]
    if not is_nvml_first:
        told += nvml_says(ledger, clock.monotonic(), 79)
    clock.advance(2)
    told += probe.read(0)["events"]
    assert [json.loads(row["details"]).get("kmsg_sequence") for row in told] == [0]


def test_what_nvml_alone_tells_goes_out_with_the_next_reading(log, tmp_path) -> None:
    clock, ledger = ManualClock(NOW), XidLedger(has_log=True)
    probe = probe_of(log, tmp_path, clock, ledger=ledger)
    probe.read(0)
    assert nvml_says(ledger, clock.monotonic(), 48) == []
    assert xids(probe) == [], "its line may be on its way"
    clock.advance(1)
    assert xids(probe) == [48]
    clock.advance(1)
    assert xids(probe) == []


def test_a_log_that_may_not_be_read_is_not_waited_for(log, tmp_path) -> None:
    clock, ledger = ManualClock(NOW), XidLedger(has_log=True)
    log.failures.append(PermissionError(errno.EPERM, "no"))
    probe = probe_of(log, tmp_path, clock, ledger=ledger)
    with pytest.raises(ProbeError):
        probe.read(0)
    assert len(nvml_says(ledger, clock.monotonic(), 48)) == 1


def test_a_command_beside_an_agent_moves_no_position(tmp_path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(f"4,1,{NOW_US},-;{XID_43}\n".encode())
    for state_dir in (None, None, tmp_path):
        probe = kmsg_probe(state_dir, ManualClock(NOW), path=path, boot="boot-1")
        assert probe is not None
        assert xids(probe) == [43]
        probe.read(1)
        probe.close()
    assert load_position(tmp_path / "kmsg.json", "boot-1") == Position("boot-1", 1, NOW_US)


def test_an_xid_that_comes_twice_is_two(log, tmp_path) -> None:
    for _ in range(2):
        log.write(XID_43)
        log.write(XID_79)
    assert xids(probe_of(log, tmp_path)) == [43, 79, 43, 79]


def test_a_storm_is_taken_in_portions(log, tmp_path) -> None:
    for _ in range(EVENTS_MAX + 7):
        log.write(XID_43)
    probe = probe_of(log, tmp_path)
    assert len(probe.read(0)["events"]) == EVENTS_MAX
    assert len(probe.read(0)["events"]) == 7


def test_what_is_too_old_for_collectors_is_told_as_history(tmp_path) -> None:
    log, clock = FakeLog(), ManualClock(NOW)
    log.write(XID_79, NOW_US)
    clock.advance(20 * 86_400)
    (row,) = probe_of(log, tmp_path, clock).read(0)["events"]
    assert "ts" not in row
    assert row["severity"] == "info"
    assert row["message"].endswith("(it happened at 2026-07-14 08:12 UTC)")


def test_the_first_call_waits_for_the_names_of_the_gpus(log, tmp_path) -> None:
    clock, gpus = ManualClock(NOW), {}
    probe = probe_of(log, tmp_path, clock, gpus=gpus, gpu_count=1)
    log.write(XID_43)
    assert probe.read(0) == {}
    gpus["0000:3b:00.0"] = (0, "GPU-0")
    assert probe.read(0)["events"][0]["gpu_uuid"] == "GPU-0"


def test_a_gpu_that_never_says_its_name_is_not_waited_for_without_end(log, tmp_path) -> None:
    clock = ManualClock(NOW)
    probe = probe_of(log, tmp_path, clock, gpus={}, gpu_count=1)
    log.write(XID_43)
    assert probe.read(0) == {}
    clock.advance(NAMES_WAIT_S)
    assert xids(probe) == [43]


def test_what_was_read_before_an_error_is_not_lost(log, tmp_path) -> None:
    path = tmp_path / "fifo"
    probe = probe_of(log, tmp_path, path=path)
    log.write(XID_43)

    class Failing(FakeLog):
        def read(self) -> bytes | None:
            data = log.read()
            if data is None:
                raise OSError(errno.ENODEV, "No such device")
            return data

    probe = probe_of(Failing(), tmp_path, path=path)
    assert xids(probe) == [43]
    with pytest.raises(ProbeError, match="cannot be read: No such file or directory"):
        probe.read(0)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_without_permission_the_error_says_what_to_give(log, tmp_path, number: int) -> None:
    log.failures.append(PermissionError(number, "no"))
    with pytest.raises(ProbeError, match="CAP_SYSLOG") as raised:
        probe_of(log, tmp_path).read(0)
    assert raised.value.kind == "probe_failed"


def test_a_machine_without_the_device_has_no_probe(tmp_path) -> None:
    assert kmsg_probe(tmp_path, ManualClock(NOW), path=tmp_path / "none") is None


def test_a_real_file_is_read_without_waiting_for_it(tmp_path) -> None:
    """A FIFO, where several records can come at once; the kernel's file gives one a read."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    probe = kmsg_probe(tmp_path, ManualClock(NOW), path=path, boot="boot-1")
    assert probe is not None
    assert probe.describe() == {}
    assert probe.read(0) == {"events": []}, "nobody writes"
    with path.open("wb", buffering=0) as writer:
        assert probe.read(0) == {"events": []}, "nothing is written"
        writer.write(f"4,7,{NOW_US},-;{XID_43}\n SUBSYSTEM=pci\n4,8,{NOW_US},c;{XID_79}\n".encode())
        assert xids(probe) == [43, 79]
        assert probe.read(0) == {"events": []}
    probe.close()
    assert load_position(tmp_path / "kmsg.json", "boot-1") == Position("boot-1", 8, NOW_US)
    probe.close()


def test_this_machines_log_is_read_to_its_end(tmp_path) -> None:
    try:
        log = DevKmsg()
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error}")
    log.close()
    probe = kmsg_probe(tmp_path, ManualClock(NOW))
    assert probe is not None
    probe.read(0)
    probe.close()
    assert (tmp_path / "kmsg.json").exists()


@pytest.mark.parametrize(("name", "records"), [("kmsg_1.log", 46 + 1), ("kmsg_2_peermem.log", 8)])
def test_real_records_have_their_parts(name: str, records: int) -> None:
    if not LOGS.is_dir():
        pytest.skip("no kernel logs at ../shared/data/kernel_log")
    data = (LOGS / name).read_bytes()
    found = list(parse_records(data))
    assert len(found) == records
    assert found[0].sequence in (3964, 3973)


def test_escaped_bytes_of_a_record_become_text() -> None:
    assert list(
        parse_records(b"6,1,2,-,caller=T1;a\\x0ab \\x5cx41 \\xc3\\xa9 \\xff\n KEY=v\n")
    ) == [Record(1, 2, "a\nb \\x41 é \ufffd")]


@given(st.binary())
def test_no_bytes_are_too_odd_to_be_read(data: bytes) -> None:
    for record in parse_records(data + b"\n6,1,2,-;" + data):
        assert record.sequence >= 0


@settings(max_examples=30)
@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["read", "restart"]), st.just(0)),
        ),
        max_size=30,
    )
)
def test_through_any_restarts_every_xid_comes_exactly_once(tmp_path_factory, actions) -> None:
    state_dir, log = tmp_path_factory.mktemp("state"), FakeLog()
    probe = probe_of(log, state_dir)
    told: list[int] = []

    def read() -> None:
        told.extend(
            json.loads(row["details"])["kmsg_sequence"] for row in probe.read(0).get("events", ())
        )

    for action, number in [*actions, ("read", 0)]:
        if action == "write":
            for _ in range(number):
                log.write(XID_43)
        elif action == "read":
            read()
        else:
            probe.close()
            log = log.opened_again()
            probe = probe_of(log, state_dir)
    assert told == [record[0] for record in log.records]
