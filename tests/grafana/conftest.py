"""A collector with rules, and the two simulated nodes whose faults the dashboards show."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from bench.this_host import free_port

HISTORY_S = 4500
"""More than an hour, so that an hour is rolled up."""
FAULTS = """
[[fault]]
at = "10m"
node = "sim-0001"
gpu = 2
fault = "xid"
code = 63
text = "Row remapper: new row marked for remapping"

[[fault]]
at = "10m"
node = "sim-0001"
gpu = 2
fault = "nvlink_down"
link = 4
flap = "40s"

[[fault]]
at = "20m"
node = "sim-0001"
gpu = 2
fault = "ecc_corrected"
per_minute = 60
"""
_READY = (
    "SELECT count(*) >= 3 FROM incidents_now",
    "SELECT count(*) > 0 FROM incidents_now WHERE usd_per_hour > 0 AND opened_at < now()::TIMESTAMP - INTERVAL 2 MINUTE",
    "SELECT count(*) > 0 FROM waste_1h",
    "SELECT count(*) > 0 FROM diagnoses WHERE ended_at IS NULL AND advice IS NOT NULL AND node = 'sim-0001' AND gpu = 2",
    "SELECT count(*) > 1 FROM collector_samples",
    "SELECT count(*) > 0 FROM link_errors",
    "SELECT count(DISTINCT node) = 2 FROM gpus_now",
    "SELECT max(ts) > now()::TIMESTAMP - INTERVAL 5 MINUTE FROM gpu_1m",
)  # fmt: skip
"""What must be there before a dashboard has all that it shows."""


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """Addresses of the collector."""

    url: str
    postgres_port: int

    @property
    def prometheus(self) -> str:
        return f"{self.url}/prometheus"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.postgres_port, user="x", dbname="gpuwarden", autocommit=True
        )


def _gpuwarden(*arguments: str, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("gpuwarden")), *arguments],
            stdout=file,
            stderr=file,
            env={"PATH": "/usr/bin:/bin", "HOME": str(log.parent), **environment},
        )


@pytest.fixture(scope="module")  # tests have no packages: such a scope is the whole run
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    """The fleet, when all that the dashboards show is there."""
    folder = tmp_path_factory.mktemp("grafana")
    port, postgres_port = free_port(), free_port()
    script = folder / "faults.toml"
    script.write_text(FAULTS)
    found = WatchedFleet(f"http://127.0.0.1:{port}", postgres_port)
    processes = [
        _gpuwarden(
            "up", "--simulate", "0", "--port", str(port), "--data", str(folder / "data"),
            log=folder / "up.log", GPUWARDEN_COLLECTOR_POSTGRES_PORT=str(postgres_port),
        )
    ]  # fmt: skip
    try:
        _wait(found, ["SELECT true"], processes, folder)
        processes.append(
            _gpuwarden(
                "simulate", "--nodes", "2", "--gpus-per-node", "4", "--history", str(HISTORY_S),
                "--script", str(script), "--collector-url", found.url, log=folder / "simulate.log",
            )
        )  # fmt: skip
        _wait(found, _READY, processes, folder)
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def _wait(
    fleet: WatchedFleet, wanted: list[str] | tuple[str, ...], processes: list[subprocess.Popen[bytes]], folder: Path
) -> None:  # fmt: skip
    deadline = time.monotonic() + 800
    missing = list(wanted)
    while time.monotonic() < deadline:
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
        assert all(process.poll() is None for process in processes), logs
        try:
            with fleet.connect() as connection:
                missing = [q for q in missing if not connection.execute(q.encode()).fetchone()[0]]
        except psycopg.Error:
            time.sleep(1)
            continue
        if not missing:
            return
        time.sleep(2)
    raise AssertionError(f"not within 800 s: {missing}\n{logs}")
