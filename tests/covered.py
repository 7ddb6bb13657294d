"""Saves what coverage.py measures of the collector's processes before they are killed: `make coverage`.

Query processes, the fork server and a storage process that has stopped end by SIGKILL, after which nothing can be
written; a query process may also write only where the kernel lets it.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden_collector import forked

IS_MEASURED = "COVERAGE_PROCESS_CONFIG" in os.environ


def works() -> Mapping[bytes, Callable[[socket.socket], None]]:
    """The main functions of `forked.works`, of processes that save what was measured before each message."""
    from coverage import Coverage

    from gpuwarden_collector.processes.sandbox import Needs
    from gpuwarden_collector.query import worker
    from gpuwarden_collector.storage import process

    def save() -> None:
        if measuring := Coverage.current():
            measuring.save()

    send, needs, stop = worker.send, worker.needs, process.Upkeep.stop

    def send_saved(*args: Any) -> None:
        save()
        send(*args)

    def needs_measured(settings: worker.WorkerSettings) -> Needs:
        needed = needs(settings)
        measuring = Coverage.current()
        folder = Path(str(measuring.get_option("run:data_file"))).parent if measuring else None
        return replace(needed, writable=(*needed.writable, *([folder] if folder else [])))

    async def stop_saved(upkeep: process.Upkeep) -> None:
        await stop(upkeep)
        save()

    worker.send, worker.needs = send_saved, needs_measured
    process.Upkeep.stop = stop_saved
    os.register_at_fork(before=save)
    return forked.works()
