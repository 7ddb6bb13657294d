"""Runs the fork server of the collector's processes: queries of clients, queries of rules, and storage."""

import socket
from collections.abc import Callable, Mapping

from gpuwarden_collector.processes.forkserver import QUERY, RULES, STORAGE, main


def works() -> Mapping[bytes, Callable[[socket.socket], None]]:
    """Import the main function of each kind of process once for all processes."""
    import pyarrow.compute
    import pyarrow.dataset  # noqa: F401

    from gpuwarden_collector.query import worker
    from gpuwarden_collector.storage import process, views

    views.prepare()
    return {QUERY: worker.work, RULES: worker.work, STORAGE: process.work}


if __name__ == "__main__":
    main(works)
