"""A real Prometheus and a real vmagent scrape an agent's exporter and send to a collector that has no agent."""

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bench.this_host import free_port
from tests.end_to_end.conftest import World
from tests.remote_write import encode

from gpuwarden_prometheus.received.messages import new_request

NODE = "far-away"
COLUMNS = {
    "util_percent": "DCGM_FI_DEV_GPU_UTIL",
    "power_watts": "DCGM_FI_DEV_POWER_USAGE",
    "temperature_celsius": "DCGM_FI_DEV_GPU_TEMP",
    "memory_used_bytes": "DCGM_FI_DEV_FB_USED",
    "energy_joules_total": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
}
SCALE = {"memory_used_bytes": 2**20, "energy_joules_total": 1e-3}
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpu
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
"""
REMOTE = """
remote_write:
  - url: {url}/prometheus/api/v1/write
    queue_config: {{min_shards: 3, max_samples_per_send: 37, batch_send_deadline: 200ms}}
"""


class Prometheus:
    """A Prometheus that scrapes the agent and forwards to a collector."""

    def __init__(self, folder: Path, url: str, exporter: int) -> None:
        self.port = free_port()
        self._folder = folder
        folder.mkdir()
        (folder / "prometheus.yml").write_text((CONFIG + REMOTE).format(url=url, exporter=exporter))
        self.begin()

    def begin(self) -> None:
        log = (self._folder / "log").open("ab")
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={self._folder}/prometheus.yml", f"--storage.tsdb.path={self._folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(90)

    def samples(self, query: str) -> Mapping[str, Mapping[int, float]]:
        """Raw samples of a metric by GPU and milliseconds."""
        form = urllib.parse.urlencode({"query": f"{query}[1h]"})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{form}") as answer:
            found = json.load(answer)["data"]["result"]
        values: dict[str, dict[int, float]] = {}
        for series in found:
            at = values.setdefault(series["metric"]["UUID"], {})
            at |= {round(float(ts) * 1000): float(value) for ts, value in series["values"]}
        return values


@pytest.fixture
def far(tmp_path: Path) -> Iterator[World]:
    """The collector that has no agent."""
    folder = tmp_path / "far"
    folder.mkdir()
    made = World(folder)
    yield made
    for process in made.processes:
        if process.popen.poll() is None:
            process.kill()


def _begin_agent(world: World) -> int:
    """The port of the exporter of an agent with two simulated GPUs, which ships to its own collector."""
    exporter = free_port()
    world.collector(has_rules=False)
    world.env |= {
        "GPUWARDEN_AGENT_EXPORTER_LISTEN": f"127.0.0.1:{exporter}",
        "GPUWARDEN_AGENT_EXPORTER_NAMES": "dcgm",
        "GPUWARDEN_AGENT_SIMULATE_GPUS": "2",
    }
    world.start("agent", "run", "--backend", "simulator", "--node", NODE, "--state-dir", "state")
    world.wait_for(lambda: (world.one("select count(*) from gpu_samples") or 0) >= 4, "samples")
    return exporter


def _rows(world: World, names: str) -> Mapping[tuple[str, int], tuple]:
    found = world.ask(f"select gpu_uuid, epoch_ms(ts), {names} from gpu_samples order by ts")
    rows = {row[:2]: row[2:] for row in found}
    assert len(rows) == len(found), "a GPU has two rows of one time"
    return rows


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not on the PATH")
def test_rows_by_remote_write_are_those_that_prometheus_has_also_after_kills(world, far) -> None:
    exporter = _begin_agent(world)
    collector = far.collector(has_rules=False)
    prometheus = Prometheus(far.folder / "prometheus", far.url, exporter)
    try:
        far.wait_for(lambda: (far.one("select count(*) from gpu_samples") or 0) >= 10, "rows")
        collector.kill()
        time.sleep(3)
        collector = far.collector(has_rules=False)
        time.sleep(3)
        prometheus.end()
        prometheus.begin()
        count = far.one("select count(*) from gpu_samples")
        far.wait_for(
            lambda: (far.one("select count(*) from gpu_samples") or 0) >= count + 16, "more rows"
        )
        before_ms = max(ts for _, ts in _rows(far, "util_percent"))
        theirs = {name: prometheus.samples(name) for name in COLUMNS.values()}
    finally:
        prometheus.end()
    names = ", ".join(COLUMNS)
    mine = _rows(far, names)
    wanted = {(uuid, ts) for uuid, at in theirs["DCGM_FI_DEV_GPU_UTIL"].items() for ts in at}
    wanted = {key for key in wanted if key[1] <= before_ms}
    assert len(wanted) > 40
    assert wanted <= mine.keys(), f"lost: {sorted(wanted - mine.keys())[:5]}"
    assert {key for key in mine if key[1] <= before_ms} <= wanted
    world.wait_for(lambda: max(ts for _, ts in _rows(world, "1")) > before_ms + 2000, "its rows")
    sent = _rows(world, names)
    for uuid, ts in sorted(wanted):
        for (column, name), value in zip(COLUMNS.items(), mine[uuid, ts], strict=True):
            said = theirs[name][uuid][ts] * SCALE.get(column, 1)
            assert math.isclose(value, said, rel_tol=1e-6), (column, uuid, ts)
            at = list(COLUMNS).index(column)
            # The exporter shows the last reading, which may be of after the scrape's begin where the
            # machine is busy; MiB and mJ are rounded.
            shown = [
                row[at] for (u, t), row in sent.items() if u == uuid and ts - 5000 <= t <= ts + 1500
            ]
            assert any(
                math.isclose(value, s, rel_tol=1e-4, abs_tol=2**20 if "bytes" in column else 1e-3)
                for s in shown
            ), (column, value, shown)
    told = far.ask("select node, model, catalogue_model is null from gpus")
    assert told == [(NODE, "NVIDIA H100-SXM-80GB", False)] * 2


def send_scrape(world: World, second: int) -> None:
    """One scrape of a GPU that works and one that a pod holds and does not use, as dcgm-exporter has them."""
    message = new_request(1)
    for index, (util, watts) in enumerate(((95.0, 600.0), (0.0, 70.0))):
        labels = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": NODE, "modelName": "NVIDIA H100 80GB HBM3"}  # fmt: skip
        labels |= {"namespace": "ml", "pod": f"train-{index}", "container": "main"}
        values = {
            "GPU_UTIL": util, "POWER_USAGE": watts + second % 3, "FB_USED": 40_000.0, "FB_FREE": 41_000.0, "GPU_TEMP": 50.0,
            "SM_CLOCK": 1_980.0, "TOTAL_ENERGY_CONSUMPTION": watts * 1000 * (second % 10**7),
        }  # fmt: skip
        for name, value in values.items():
            series = message.timeseries.add()
            for label, text in sorted({"__name__": f"DCGM_FI_DEV_{name}", **labels}.items()):
                series.labels.add(name=label, value=text)
            series.samples.add(value=value, timestamp=second * 1000)
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    request = urllib.request.Request(
        f"{world.url}/prometheus/api/v1/write", encode(message), headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


@pytest.mark.slow
def test_gpus_without_our_agent_are_shown_billed_and_diagnosed(far) -> None:
    far.collector()
    now = int(time.time()) // 15 * 15
    for second in range(now - 1200, now, 15):
        send_scrape(far, second)
    sent = now

    def has(sql: str) -> bool:
        nonlocal sent
        while sent + 15 <= time.time():  # the next scrapes
            sent += 15
            send_scrape(far, sent)
        time.sleep(1)
        return bool(far.one(sql))

    held = (
        "category IN ('idle_held', 'allocated_idle') AND gpu_uuid = 'GPU-1' AND job = 'ml/train-1'"
    )
    far.wait_for(
        lambda: has(f"select sum(gpu_hours) > 0.2 from waste where {held}"), "waste", within_s=300
    )
    (hours, usd) = far.ask(f"select sum(gpu_hours), sum(usd) from waste where {held}")[0]
    assert usd / hours == pytest.approx(2.95, rel=0.01)
    assert not far.one("select sum(usd) from waste where is_waste and gpu_uuid = 'GPU-0'")
    for uuid in ("GPU-0", "GPU-1"):
        with urllib.request.urlopen(f"{far.url}/gpus/{uuid}", timeout=60) as page:
            text = page.read().decode()
        assert "NVIDIA H100 80GB HBM3" in text
        assert NODE in text
    found = "select count(*) from diagnoses where kind = 'gpu'"
    far.wait_for(
        lambda: has(f"{found} and subject = 'GPU-0' and bottleneck = 'busy'"),
        "diagnoses",
        within_s=300,
    )
    # A job that hangs looks like one that holds its GPU and does nothing.
    assert not has(f"{found} and subject = 'GPU-1' and bottleneck <> 'unknown'")
