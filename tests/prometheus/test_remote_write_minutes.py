"""A real Prometheus that was away has each minute of the collector's metrics as our PromQL answers it, through kill -9."""

import json
import shutil
import sys
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench.this_host import free_port
from tests.prometheus.test_remote_write_receivers import SERVE, Killable, eventually, get

from gpuwarden.collector_metrics import SOURCES
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_collector.forwarding.minutes import minutes_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not on the PATH"),
]
BEFORE = 25
"""Minutes for which the receiver has been away."""
COMPARED = ("alerts_metrics", "diagnoses_metrics", "coverage_metrics", "allocations_metrics")
"""Sources that settle within a minute, and have rows of that time."""


class Programs:
    """A Prometheus, and a collector whose positions are BEFORE minutes old."""

    def __init__(self, folder: Path) -> None:
        ports = {"prometheus": free_port(), "collector": free_port()}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        self.data_dir = folder / "data"
        self.began = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=BEFORE)
        (folder / "prometheus.yml").write_text("scrape_configs: []\n")
        (folder / "receivers.toml").write_text(
            f'[[receiver]]\nname = "p"\nurl = "{self.urls["prometheus"]}/api/v1/write"\nnames = ["collector"]\n'
        )
        (folder / "states.json").write_text(json.dumps(self._states()))
        positions = minutes_folder(self.data_dir, "p")
        positions.mkdir(parents=True)
        for source in SOURCES:
            said = {"position_ms": self.seconds(0) * 1000, "sending_ms": None}
            (positions / f"{source}.json").write_text(json.dumps(said))
        self.prometheus = Killable(
            [
                "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'p'}",
                "--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
            ],
            folder / "prometheus.log",
            lambda: get(self.urls["prometheus"] + "/-/ready"),
        )  # fmt: skip
        self.collector = Killable(
            [
                sys.executable, str(SERVE), str(self.data_dir), str(ports["collector"]),
                str(folder / "receivers.toml"), str(folder / "states.json"),
            ],
            folder / "collector.log",
            lambda: get(self.urls["collector"] + "/metrics"),
        )  # fmt: skip

    def seconds(self, minute: float) -> int:
        """A minute since the begin, in seconds."""
        return round((self.began + timedelta(minutes=minute)).timestamp())

    def _states(self) -> list[tuple[str, int, int | None]]:
        spans = [("a", 2.4, 9.3), ("b", 4.0, 5.5), ("c", 14.6, None), ("a", 16.2, 20.7)]
        return [
            (name, self.seconds(begin), None if end is None else self.seconds(end))
            for name, begin, end in spans
        ]

    def post(self, wire: Any) -> None:
        """Rows of coverage and allocations, with gaps."""
        gpu = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-0", "simulated": False}
        coverage = [
            {"ts": self.began + timedelta(minutes=m), **gpu, "probe": "gpu0", "table_name": "gpu_samples",
             "expected": 60, "taken": 60 - m, "missed": m, "skipped": 0, "late": 0, "failed": 0}
            for m in range(BEFORE) if m not in (6, 7, 8, 9)
        ]  # fmt: skip
        allocations = [
            {"ts": self.began + timedelta(seconds=10 * s), **gpu, "scheduler": "slurm", "owner": f"job/{s // 40}",
             "slurm_job_id": str(s // 40), "username": "anna"}
            for s in range(6 * BEFORE) if s % 40 > 6
        ]  # fmt: skip
        for sequence, (table, rows) in enumerate(
            (("coverage", coverage), ("allocation_samples", allocations)), 1
        ):
            headers = {
                **headers_of(BatchId("agent-1", "boot-1", sequence, 0)),
                "Content-Type": CONTENT_TYPE,
                "Content-Encoding": "zstd",
            }
            body = wire.zstd(wire.stream(table, rows))
            asked = urllib.request.Request(self.urls["collector"] + INGEST_PATH, body, headers)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.status == 204

    def position(self, source: str) -> int:
        """The last minute that the receiver has, since the begin."""
        said = json.loads((minutes_folder(self.data_dir, "p") / f"{source}.json").read_text())
        return int(said["position_ms"] / 1000 - self.seconds(0)) // 60

    def answer(self, program: str, query: str, minute: int) -> dict[str, float]:
        """Values by series of an instant query."""
        path = "/prometheus/api/v1" if program == "collector" else "/api/v1"
        asked = urllib.parse.urlencode({"query": query, "time": self.seconds(minute)})
        found = json.loads(get(f"{self.urls[program]}{path}/query?{asked}"))["data"]["result"]
        return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in found}


def test_a_prometheus_that_was_away_has_each_minute_through_kills(
    tmp_path: Path, wire_maker: Any
) -> None:
    here = Programs(tmp_path)
    try:
        here.collector.start()
        here.post(wire_maker())
        failures = 'remote_write_failures_total{receiver="p"} '
        eventually(
            lambda: failures + "0.0" not in get(here.urls["collector"] + "/metrics").decode()
        )
        assert here.position("alerts_metrics") == 0
        here.collector.kill()
        here.collector.start()
        here.prometheus.start()
        # Killed between two sources, or within one.
        eventually(lambda: any(here.position(source) > 0 for source in COMPARED))
        here.collector.kill()
        here.prometheus.kill()
        here.prometheus.start()
        here.collector.start()
        eventually(lambda: all(here.position(source) >= BEFORE for source in COMPARED), 240)
        _compare(here)
        text = get(here.urls["collector"] + "/metrics").decode()
        assert 'remote_write_skipped_minutes_total{receiver="p"} 0.0' in text
    finally:
        here.collector.kill()
        here.prometheus.kill()


def _compare(here: Programs) -> None:
    until = time.monotonic() + 60
    for source in COMPARED:
        names = "|".join(metric.name for metric in SOURCES[source].metrics)
        values = 0
        for minute in range(1, BEFORE + 1):
            asked = f'{{__name__=~"{names}"}}'
            wanted = here.answer("collector", asked, minute)
            while here.answer("prometheus", asked, minute) != pytest.approx(wanted):
                assert time.monotonic() < until, (source, minute, wanted)
                time.sleep(0.2)
            values += len(wanted)
        assert values, source
