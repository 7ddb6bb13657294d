"""Runs the fork server of the collector's processes: queries of clients, of rules and of teams, and storage."""

from collections.abc import Mapping

from gpuwarden_collector.processes.forkserver import (
    QUERY,
    RULES,
    STORAGE,
    TEAM,
    TEAM_ROWS,
    Work,
    main,
)


def works() -> Mapping[bytes, Work]:
    """Import the main function of each kind of process once for all processes."""
    import pyarrow.compute
    import pyarrow.dataset  # noqa: F401

    from gpuwarden_collector.query import worker
    from gpuwarden_collector.storage import process, views

    views.prepare()
    return {
        QUERY: worker.work,
        RULES: worker.work,
        STORAGE: process.work,
        TEAM: worker.work_for_team,
        TEAM_ROWS: worker.work_on_rows,
    }


if __name__ == "__main__":
    main(works)
