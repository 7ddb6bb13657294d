"""DuckDB without the check of its extensions' signatures, for the stores of tests.

The check reads 70 MB for 0.2 s of a processor each time that a process opens a store: half of what most tests
of the collector took. Run as a program this is the fork server with such processes.
"""

from typing import Any

import duckdb
from tests import covered

from gpuwarden_collector import forked
from gpuwarden_collector.processes import forkserver

_connect = duckdb.connect


def _connected(
    *args: Any, config: dict[str, Any] | None = None, **more: Any
) -> duckdb.DuckDBPyConnection:
    if config is not None:
        more["config"] = {"allow_unsigned_extensions": True, **config}
    return _connect(*args, **more)


def connect_unchecked() -> None:
    """Skip them in this process."""
    duckdb.connect = _connected


KEPT = (*forkserver.KEPT, "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")


def skip_checks() -> None:
    """Skip them in this process, and in those that its fork server makes."""
    connect_unchecked()
    forkserver._server = forkserver.ForkServer("tests.unchecked", KEPT)


if __name__ == "__main__":
    connect_unchecked()
    forkserver.main(covered.works if covered.IS_MEASURED else forked.works)
