"""The record of a board for its vendor: what is known, why it is replaced, and nothing about people."""

import csv
import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwarden_cli.rma_record import NODE, REPLACE_RULES, RmaRecord, read, text, write_archive
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.testing.database import MemoryDatabase

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
GPU = {"node": "n1", "gpu": 3, "gpu_uuid": "GPU-a", "simulated": False}


def alert(rule: str, at: datetime, gpu_uuid: str = "GPU-a") -> dict[str, object]:
    return {
        "fingerprint": f"{rule}{gpu_uuid}", "rule": rule, "severity": "critical", "consequence": "failing_hardware",
        "state": "firing", "node": "n1", "gpu": 3, "gpu_uuid": gpu_uuid, "labels": "{}", "summary": "eve has lost $7",
        "remedy": "r", "began_at": at, "active_at": at, "fired_at": at, "seen_at": at, "simulated": False, "owner": "eve",
    }  # fmt: skip


@pytest.fixture
def database():
    made = MemoryDatabase()
    seen = {"first_seen_at": NOW - 90 * DAY, "last_seen_at": NOW}
    made.insert("gpus", [
        {**GPU, **seen, "vendor": "nvidia", "model": "NVIDIA H100", "serial": "165", "part_number": "900-21001", "usd_per_hour": 9.0},
        {**GPU, **seen, "gpu": 4, "gpu_uuid": "GPU-b", "model": "NVIDIA H100"},
    ])  # fmt: skip
    made.insert("nodes", [{
        "node": "n1", "simulated": False, "agent_id": "a", "boot_id": "b", "driver_version": "580.1", "kernel": "6.8", **seen,
    }])  # fmt: skip
    made.insert("gpu_health_samples", [
        {**GPU, "ts": NOW - days * DAY, "remap_failed": days == 0, "ecc_uncorrected_aggregate_total": 2 - days,
         "inforom_valid": True, "recovery_action": "gpu_reset" if days == 0 else "none", "remap_banks_max": 2560,
         "fabric_state": "completed", "retired_pages_pending": False}
        for days in (2, 1, 0)
    ])  # fmt: skip
    of_gpu = {"node": "n1", "simulated": False, "gpu": 3, "gpu_uuid": "GPU-a"}
    made.insert("events", [
        {**of_gpu, "ts": NOW - DAY, "kind": "xid", "severity": "critical", "message": "Xid 79 on GPU 3", "details": '{"xid": 79}'},
        {**of_gpu, "ts": NOW - 2 * DAY, "kind": "xid", "severity": "critical", "message": "Xid 79 on GPU 3", "details": '{"xid": 79}'},
        {**of_gpu, "ts": NOW - DAY, "kind": "agent_started", "severity": "info", "message": "an agent started"},
        {**of_gpu, "gpu": 4, "gpu_uuid": "GPU-b", "ts": NOW, "kind": "xid", "severity": "critical", "message": "Xid 48", "details": '{"xid": 48}'},
        {**of_gpu, "gpu": None, "gpu_uuid": None, "ts": NOW, "kind": "driver_mismatch", "severity": "critical", "message": "versions differ"},
        {**of_gpu, "gpu": None, "gpu_uuid": None, "ts": NOW, "kind": "disk_filling", "severity": "critical", "message": "disk of eve"},
    ])  # fmt: skip
    made.insert("alerts", [
        alert("row_remap_failed", NOW - DAY), alert("row_remap_failed", NOW), alert("gpu_lost", NOW),
        alert("inforom_invalid", NOW, "GPU-b"),
    ])  # fmt: skip
    made.insert("gpu_1h", [
        {**GPU, "ts": (NOW - DAY).replace(minute=0, second=0), "samples": 3600, "detail_samples": 0, "health_samples": 0,
         "temperature_celsius_max": 91.0, "power_watts_max": 702.0, "busy_seconds": 1800.0, "pcie_replays_delta": 4}
    ])  # fmt: skip
    yield made
    made.close()


async def record_of(database: MemoryDatabase, gpu_uuid: str = "GPU-a") -> RmaRecord:
    return await read(database, gpu_uuid, "n1", NOW - 30 * DAY, NOW)


async def test_a_board_has_its_identity_counters_xids_and_reasons(database) -> None:
    record = await record_of(database)
    assert record.reasons == [
        f"A memory row could not be remapped. (row_remap_failed, {NOW:%Y-%m-%d %H:%M} UTC)"
    ]
    assert record.counters() == [
        ("recovery_action", "none", "gpu_reset"),
        ("ecc_uncorrected_aggregate_total", 0, 2),
        ("remap_failed", False, True),
    ]
    said = text(record)
    rows = [line.split() for line in said.splitlines()]
    assert ["serial", "165"] in rows and ["driver_version", "580.1"] in rows
    assert ["remap_failed", "no", "yes"] in rows
    assert [row for row in rows if row[:2] == ["79", "2"]], "Xids are counted"
    assert "versions differ" in said and "Xid 48" not in said and "an agent started" not in said
    assert ["temperature_celsius_max", "91"] in rows and ["busy_hours", "0.5"] in rows


async def test_nothing_about_people_or_money_is_in_it(database) -> None:
    record = await record_of(database)
    whole = text(record) + json.dumps(record.document(), default=str)
    assert "eve" not in whole.replace("severity", "").replace("event", "")
    assert "$" not in whole and "usd" not in whole


async def test_the_archive_has_all_rows_and_the_files_beside_it(database, tmp_path: Path) -> None:
    record = await record_of(database)
    report = tmp_path / "nvidia-bug-report.log.gz"
    report.write_bytes(b"log")
    path = tmp_path / "a.tar.gz"
    write_archive(path, record, [report])
    read_back = {}
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None and member.uname == ""
            read_back[member.name] = file.read()
    assert sorted(read_back) == [
        "rma/alerts.csv", "rma/events.csv", "rma/nvidia-bug-report.log.gz", "rma/record.json", "rma/record.txt",
    ]  # fmt: skip
    assert read_back["rma/record.txt"].decode() == text(record)
    assert json.loads(read_back["rma/record.json"])["board"]["serial"] == "165"
    rows = list(csv.DictReader(io.StringIO(read_back["rma/events.csv"].decode())))
    assert [row["xid"] for row in rows] == ["", "79", "79"]
    assert read_back["rma/nvidia-bug-report.log.gz"] == b"log"
    with pytest.raises(FileExistsError):
        write_archive(path, record, [])
    assert path.stat().st_size > 0
    with pytest.raises(OSError, match="gone"):
        write_archive(tmp_path / "b.tar.gz", record, [tmp_path / "gone"])
    assert not (tmp_path / "b.tar.gz").exists()


def test_the_rules_that_replace_a_board_are_rules() -> None:
    assert set(REPLACE_RULES) <= {rule.name for rule in builtin_rules()}
    assert len(NODE) == len(set(NODE))
