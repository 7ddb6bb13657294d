"""A collector that forwards, as a process of its own, for tests that kill it: `serve_forwarding.py DIR PORT FILE [STATES]`."""

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.clock import SystemClock
from gpuwarden.diagnosis import Bottleneck, Diagnosis
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.front import PROMETHEUS
from gpuwarden_prometheus.remote_write.sender import REMOTE_WRITE


async def main(data_dir: Path, port: int, receivers: Path, states: Path | None) -> None:
    """Serve until stdin closes; the first line of output is the URL.

    `states`: JSON list of (name, begin, end or null) in seconds: a firing alert and a verdict for each.
    """
    settings = CollectorSettings(
        port=port,
        data_dir=data_dir,
        threads=1,
        commit_interval_s=0.02,
        seal_interval_s=2,
        disk_free_bytes_min=1024 * 1024,
        remote_write_file=receivers,
        log_level="warning",
    )
    clock = SystemClock()
    async with running(settings, clock, forwarding=REMOTE_WRITE, http_fronts=[PROMETHEUS]) as found:
        if states is not None:
            await _save(found, json.loads(await asyncio.to_thread(states.read_text)))
        print(found.url, flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


async def _save(collector: Collector, states: list[tuple[str, float, float | None]]) -> None:
    for name, begin, end in states:
        began_at = datetime.fromtimestamp(begin, UTC)
        ended_at = None if end is None else datetime.fromtimestamp(end, UTC)
        state = AlertState.FIRING if end is None else AlertState.RESOLVED
        alert = Alert(
            fingerprint=name, rule="gpu_hot", severity=Severity.WARNING, state=state, labels={"node": name},
            summary="s", remedy="r", value=None, usd_per_hour=None, began_at=began_at, active_at=began_at,
            fired_at=began_at, resolved_at=ended_at, seen_at=ended_at or began_at,
        )  # fmt: skip
        await collector.alerts.save([alert])
        verdict = Diagnosis(
            subject=f"GPU-{name}", kind="gpu", bottleneck=Bottleneck.STORAGE_NETWORK, confidence=0.75, summary="s",
            advice=None, stall=(begin % 97) / 100, node=name, gpu=0, began_at=began_at,
            seen_at=ended_at or began_at, ended_at=ended_at,
        )  # fmt: skip
        await collector.diagnoses.save_diagnoses([verdict])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    states = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), states))
