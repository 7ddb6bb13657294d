"""Measures what the agent costs on this machine: memory and CPU of `gpuwarden agent run` as a process of its own."""

import os
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import psutil
from bench.gpu import children

WARM_UP_S = 5.0


class _Collector(BaseHTTPRequestHandler):
    """Takes every batch."""

    protocol_version = "HTTP/1.1"
    bodies: ClassVar[list[int]] = []
    """Their sizes."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        self.bodies.append(length)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def measure(backend: str, seconds: float) -> dict[str, Any]:
    """Run the agent against a collector that takes all, and look at the process from outside."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as state:
        command = children.gpuwarden(
            "agent", "run", "--backend", backend, "--state-dir", state, "--node", "evidence",
            "--collector-url", f"http://127.0.0.1:{server.server_port}", "--log-level", "warning",
        )  # fmt: skip
        environment = {**os.environ, "GPUWARDEN_AGENT_SIMULATE_GPUS": "1"}
        agent = children.start(command, stderr=subprocess.PIPE, env=environment)
        try:
            return _watch(agent, seconds)
        finally:
            agent.terminate()
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait(5)
            server.shutdown()
            server.server_close()


def _watch(agent: "subprocess.Popen[str]", seconds: float) -> dict[str, Any]:
    time.sleep(min(WARM_UP_S, seconds / 2))
    if agent.poll() is not None:
        assert agent.stderr is not None
        return {"skipped": " ".join(agent.stderr.read().split())[-300:]}
    process = psutil.Process(agent.pid)
    before, began = process.cpu_times(), time.monotonic()
    sent = len(_Collector.bodies)
    rss_max = 0
    while time.monotonic() - began < seconds:
        time.sleep(0.5)
        rss_max = max(rss_max, process.memory_info().rss)
    after, wall = process.cpu_times(), time.monotonic() - began
    cpu = after.user + after.system - before.user - before.system
    return {
        "seconds": round(wall, 1),
        "cpu_percent_of_a_core": round(100 * cpu / wall, 2),
        "rss_max_mib": round(rss_max / 1024**2, 1),
        "threads": process.num_threads(),
        "batches": len(_Collector.bodies) - sent,
        "bytes_per_second": round(sum(_Collector.bodies[sent:]) / wall),
    }
