"""A collector as a process of its own, for tests that kill it: `serve_collector.py DIR PORT`."""

import asyncio
import signal
import sys
from pathlib import Path

from gpuwarden.clock import SystemClock
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings


async def main(data_dir: Path, port: int) -> None:
    """Serve until stdin closes; the first line of output is the URL."""
    settings = CollectorSettings(port=port, data_dir=data_dir)
    async with running(settings, SystemClock()) as collector:
        print(collector.url, flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


if __name__ == "__main__":
    # Where the tests run in the background of a script it is ignored, and would be here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
