"""A real Prometheus and VictoriaMetrics get the samples that the collector has, through kill -9 of each."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench.this_host import free_port

from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("victoria-metrics") is None,
        reason="prometheus and victoria-metrics are not on the PATH",
    ),
]
SERVE = Path(__file__).with_name("serve_forwarding.py")
GPUS = 4
FLUSHED_S = 20.0
"""VictoriaMetrics answers before its rows are on disk: without a flush it loses what it accepted shortly before."""


class Killable:
    """A program that is killed and started again on the same folder."""

    def __init__(self, command: Sequence[str], log: Path, ready: Callable[[], object]) -> None:
        self._command = command
        self._log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        eventually(self._ready)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            assert process.stdin is not None
            process.stdin.close()


def eventually(check: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until a check is true; the last failure is raised."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            if check():
                return
        except (OSError, AssertionError, ValueError):
            if time.monotonic() > until_s:
                raise
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.1)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


class Place:
    """The three programs of a test."""

    def __init__(self, folder: Path) -> None:
        self.ports = {name: free_port() for name in ("prometheus", "victoria", "collector")}
        urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        (folder / "prometheus.yml").write_text("scrape_configs: []\n")
        receivers = folder / "receivers.toml"
        receivers.write_text(
            "".join(
                f'[[receiver]]\nname = "{name}"\nurl = "{urls[name]}/api/v1/write"\nnames = ["own"]\nlabels = {{cluster = "c"}}\n'
                for name in ("prometheus", "victoria")
            )
        )
        self.programs = {
            "prometheus": Killable(
                [
                    "prometheus", f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'p'}", "--web.enable-remote-write-receiver",
                    f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}",
                ],
                folder / "prometheus.log",
                lambda: get(urls["prometheus"] + "/-/ready"),
            ),
            "victoria": Killable(
                [
                    "victoria-metrics", f"-storageDataPath={folder / 'v'}", "-search.latencyOffset=1s",
                    "-search.disableCache", "-dedup.minScrapeInterval=1ms",  # a sample that came twice counts once
                    f"-httpListenAddr=127.0.0.1:{self.ports['victoria']}",
                ],
                folder / "victoria.log",
                lambda: get(urls["victoria"] + "/health"),
            ),
            "collector": Killable(
                [
                    sys.executable, str(SERVE), str(folder / "data"), str(self.ports["collector"]),
                    str(receivers),
                ],
                folder / "collector.log",
                lambda: get(urls["collector"] + "/metrics"),
            ),
        }  # fmt: skip
        self.urls = urls
        self.kept = folder / "data" / "forwarding" / "segments"

    def metric(self, name: str, receiver: str) -> float:
        text = get(self.urls["collector"] + "/metrics").decode()
        start = f'gpuwarden_collector_remote_write_{name}{{receiver="{receiver}"'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))

    def of_receiver(self, name: str, expression: str) -> dict[str, float]:
        """Values by GPU of an instant query."""
        asked = urllib.parse.urlencode({"query": expression, "time": f"{time.time():.3f}"})
        found = json.loads(get(f"{self.urls[name]}/api/v1/query?{asked}"))["data"]["result"]
        return {one["metric"]["gpu_uuid"]: float(one["value"][1]) for one in found}

    def of_sql(self, sql: str) -> list[dict[str, Any]]:
        body = json.dumps({"sql": sql}).encode()
        asked = urllib.request.Request(
            self.urls["collector"] + "/v1/sql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            said = json.load(answer)
        names = [column["name"] for column in said["columns"]]
        return [dict(zip(names, row, strict=True)) for row in said["rows"]]


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    made = Place(folder)
    try:
        for program in made.programs.values():
            program.start()
        yield made
    finally:
        for program in made.programs.values():
            program.kill()


class Agent:
    """Sends batches with a row a second of each GPU, until each is acknowledged."""

    def __init__(self, wire: Any, url: str) -> None:
        self._wire = wire
        self._url = url
        self._sequence = 0
        self._second = 0
        self._began = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=20)

    def send(self, batches: int, seconds: int = 5) -> None:
        for _ in range(batches):
            rows = [
                self._wire.gpu_row(
                    gpu,
                    ts=self._began + timedelta(seconds=self._second + second),
                    power_watts=100.0 * gpu + (self._second + second) % 97,
                    # A value that is sometimes absent.
                    util_percent=None if (self._second + second) % 5 == gpu else 7.0,
                )
                for second in range(seconds)
                for gpu in range(GPUS)
            ]
            self._second += seconds
            self._sequence += 1
            self._post(self._wire.zstd(self._wire.stream("gpu_samples", rows)))

    def _post(self, body: bytes) -> None:
        batch = BatchId("agent-1", "boot-1", self._sequence, 0)
        headers = {**headers_of(batch), "Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"}
        for _ in range(300):
            with suppress(urllib.error.URLError, OSError):
                asked = urllib.request.Request(self._url + INGEST_PATH, body, headers)
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    assert answer.status == 204
                    return
            time.sleep(0.1)
        raise AssertionError("the collector takes no batch")


def test_receivers_have_the_collectors_samples_through_kills_of_each(
    tmp_path: Path, wire_maker: Any
) -> None:
    with place(tmp_path) as here:
        agent = Agent(wire_maker(), here.urls["collector"])
        programs = here.programs
        agent.send(10)
        eventually(lambda: here.metric("samples_total", "victoria") == 360)
        get(here.urls["victoria"] + "/internal/force_flush")
        time.sleep(FLUSHED_S)
        for name in ("prometheus", "victoria"):
            programs[name].kill()
        agent.send(10)
        # Sealed segments are kept for the receivers that are away.
        eventually(lambda: any(here.kept.iterdir()))
        eventually(lambda: here.metric("failures_total", "prometheus") > 0)
        programs["collector"].kill()
        programs["collector"].start()
        agent.send(10)
        for name in ("prometheus", "victoria"):
            programs[name].start()
        agent.send(10)
        eventually(lambda: here.metric("samples_total", "prometheus") > 0)
        programs["prometheus"].kill()
        programs["collector"].kill()
        programs["prometheus"].start()
        programs["collector"].start()
        agent.send(10)
        _compare(here)
        # What all receivers have is deleted.
        eventually(lambda: not any(here.kept.iterdir()))


def _compare(here: Place) -> None:
    sql = (
        "SELECT gpu_uuid, count(power_watts) AS watts, sum(power_watts) AS sum_watts,"
        " count(util_percent) AS utils FROM gpu_samples GROUP BY ALL"
    )
    rows = here.of_sql(sql)
    assert len(rows) == GPUS
    assert all(row["watts"] == 250 and row["utils"] == 200 for row in rows)
    for name in ("prometheus", "victoria"):
        asked = {
            "watts": 'count_over_time(gpuwarden_gpu_power_watts{cluster="c"}[1h])',
            "sum_watts": 'sum_over_time(gpuwarden_gpu_power_watts{cluster="c"}[1h])',
            "utils": 'count_over_time(gpuwarden_gpu_util_ratio{cluster="c"}[1h])',
        }
        for column, expression in asked.items():
            wanted = {row["gpu_uuid"]: row[column] for row in rows}

            def is_equal(
                name: str = name, expression: str = expression, wanted: Any = wanted
            ) -> bool:
                found = here.of_receiver(name, expression)
                assert found == pytest.approx(wanted)
                return True

            eventually(is_equal, 60)
    assert here.metric("lost_rows_total", "prometheus") == 0
