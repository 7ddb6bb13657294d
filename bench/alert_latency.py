"""Measures the seconds from an Xid on an agent to a signed webhook that reports it.

    python -m bench.alert_latency [--nodes 12] [--every 5.3]

A collector with the whole pack and a fleet of simulated nodes run as processes of their own, with a
webhook's receiver in this one. Every 5.3 seconds the next node has an Xid, the first of them two
seconds after the fleet starts, while all rules still look back at their past. All is on free ports of
this host, so both clocks are one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

from bench.this_host import free_port

COMMAND = Path(sys.executable).with_name("gpuwarden")
CRITICAL_XID = 48
FIRST_S = 2
WAIT_S = 60.0


def receiver(arrived: "Queue[tuple[str, float]]") -> ThreadingHTTPServer:
    """Puts each Xid that a webhook brings into a queue: node, and seconds since it was read."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            now = datetime.now(UTC)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["webhook-signature"].startswith("v1,")
            self.send_response(204)
            self.end_headers()
            for alert in body["firing"]:
                if alert["rule"] == "xid_critical":
                    began_at = datetime.fromisoformat(alert["began_at"])
                    arrived.put((alert["labels"]["node"], (now - began_at).total_seconds()))

        def log_message(self, *words: object) -> None:
            """Nothing: the figures are the output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def written(folder: Path, hook_url: str, nodes: int, every_s: float) -> tuple[Path, Path]:
    """The collector's settings and the fleet's faults."""
    notify = folder / "notify.yaml"
    notify.write_text(f"receivers: [{{name: hook, webhook: '{hook_url}', secret: not-a-secret}}]\n")
    settings = folder / "collector.toml"
    settings.write_text(f'notify_file = "{notify}"\n')
    faults = folder / "faults.toml"
    faults.write_text(
        "\n".join(
            f'[[fault]]\nat = "{FIRST_S + every_s * n:g}s"\nnode = "sim-{n + 1:04}"\ngpu = 0\n'
            f'fault = "xid"\ncode = {CRITICAL_XID}'
            for n in range(nodes)
        )
    )
    return settings, faults


def ready(url: str) -> None:
    """Wait until the collector answers."""
    while True:
        try:
            with urlopen(f"{url}/readyz", timeout=2):
                return
        except (URLError, OSError):
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--every", type=float, default=5.3, help="seconds between two Xids")
    args = parser.parse_args()
    arrived: Queue[tuple[str, float]] = Queue()
    server = receiver(arrived)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hook = f"http://127.0.0.1:{server.server_port}/"
        settings, faults = written(folder, hook, args.nodes, args.every)
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARDEN_")}
        collect = f"collector run --config {settings} --port {port} --data-dir {folder / 'store'}"
        simulate = f"simulate --nodes {args.nodes} --gpus-per-node 8 --collector-url {url}"
        processes = [subprocess.Popen([COMMAND, *collect.split()], env=env)]
        try:
            ready(url)
            words = [*simulate.split(), "--script", str(faults)]
            processes.append(subprocess.Popen([COMMAND, *words], env=env, stdout=2))
            seconds: dict[str, float] = {}
            for _ in range(args.nodes):
                node, latency_s = arrived.get(timeout=WAIT_S)
                if node in seconds or latency_s <= 0:
                    raise SystemExit(f"{node} came again, or before its Xid: {latency_s} s")
                seconds[node] = latency_s
                print(f"{node} {latency_s:6.2f} s", flush=True)
        except Empty:
            print(f"nothing came for {WAIT_S:g} s", file=sys.stderr)
            raise SystemExit(1) from None
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)
            server.shutdown()
    longest = max(seconds.values())
    print(f"median {statistics.median(seconds.values()):.2f} s, longest {longest:.2f} s")


if __name__ == "__main__":
    main()
