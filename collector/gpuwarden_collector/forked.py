"""Runs the fork server of the collector's processes: queries of clients, queries of rules, storage and
forwarding."""

import socket
from collections.abc import Callable, Mapping

from gpuwarden_collector.processes.forkserver import FORWARDING, QUERY, RULES, STORAGE, main


def works() -> Mapping[bytes, Callable[[socket.socket], None]]:
    """Import the main function of each kind of process once for all processes."""
    import pyarrow.compute
    import pyarrow.dataset  # noqa: F401

    from gpuwarden_collector.forwarding import process as forwarding
    from gpuwarden_collector.query import worker
    from gpuwarden_collector.storage import process, views

    views.prepare()
    return {
        QUERY: worker.work,
        RULES: worker.work,
        STORAGE: process.work,
        FORWARDING: forwarding.work,
    }


if __name__ == "__main__":
    main(works)
