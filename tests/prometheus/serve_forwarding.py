"""A collector that forwards, as a process of its own, for tests that kill it: `serve_forwarding.py DIR PORT FILE`."""

import asyncio
import signal
import sys
from pathlib import Path

from gpuwarden.clock import SystemClock
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.remote_write.sender import REMOTE_WRITE


async def main(data_dir: Path, port: int, receivers: Path) -> None:
    """Serve until stdin closes; the first line of output is the URL."""
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
    async with running(settings, SystemClock(), forwarding=REMOTE_WRITE) as collector:
        print(collector.url, flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
