"""VictoriaMetrics and Prometheus beside it: started bare, fed by remote write, asked the same."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

START_S = 20.0


@dataclass(frozen=True)
class Other:
    """How a time-series database is started and flushed."""

    name: str
    binaries: tuple[str, ...]
    arguments: Callable[[Path, int], Sequence[str]]
    flush: Callable[[str, Path], Path]
    """Make it write what it holds; the folder whose size counts."""

    def binary(self) -> str | None:
        """Where it is installed; None: it is not."""
        return next((found for name in self.binaries if (found := shutil.which(name))), None)


def _flush_victoria(url: str, folder: Path) -> Path:
    for path in ("/internal/force_flush", "/internal/force_merge"):
        urllib.request.urlopen(url + path, timeout=60).read()
    time.sleep(2)  # the merge is answered before it is done
    return folder / "data"


def _flush_prometheus(url: str, folder: Path) -> Path:
    request = urllib.request.Request(url + "/api/v1/admin/tsdb/snapshot", b"", method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return folder / "data" / "snapshots" / str(json.load(answer)["data"]["name"])


VICTORIA = Other(
    "VictoriaMetrics",
    ("victoria-metrics", "victoria-metrics-prod"),
    lambda folder, port: (
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=12",
        "-search.latencyOffset=1s",
        "-search.disableCache",
    ),
    _flush_victoria,
)
PROMETHEUS = Other(
    "Prometheus",
    ("prometheus",),
    lambda folder, port: (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--web.enable-admin-api",
    ),
    _flush_prometheus,
)


class Running:
    """One of them, running."""

    def __init__(self, other: Other, process: "subprocess.Popen[bytes]", port: int, folder: Path):
        self._other = other
        self._usage = psutil.Process(process.pid)
        self._folder = folder
        self.port = port
        self._url = f"http://127.0.0.1:{port}"

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return sum(self._usage.cpu_times()[:2])

    def rss_mib(self) -> float:
        """Resident memory now."""
        return float(self._usage.memory_info().rss) / 2**20

    def flush(self) -> Path:
        """Make it write what it holds; the folder whose size counts."""
        return self._other.flush(self._url, self._folder)

    def query(self, expression: str, at_s: float) -> list[Any]:
        """Series of an instant query."""
        text = urllib.parse.urlencode({"query": expression, "time": f"{at_s:.3f}"})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{text}", timeout=120) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result


@contextmanager
def running(other: Other, folder: Path) -> Iterator[Running]:
    """It, on an empty folder, ended with the block."""
    folder.mkdir()
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    binary = other.binary()
    assert binary is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, *other.arguments(folder, port)], stdout=log, stderr=log, cwd=folder
        )
    try:
        _wait_for(process, port, folder / "log")
        yield Running(other, process, port, folder)
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/healthy", timeout=1).read()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise SystemExit(f"{process.args!r} does not answer: {log.read_text()[-500:]}")
