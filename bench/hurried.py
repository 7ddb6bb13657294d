"""Runs the fork server of a collector that maintains its lake all the time, for `bench.store_kill`."""

from datetime import timedelta

from gpuwarden_collector import forked
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.storage import maintenance
from gpuwarden_collector.storage import process as storage_process


def hurry() -> None:
    """Run within seconds what normally runs by the hour or day."""
    storage_process.MAINTAIN_LOOK_S = 0.25
    maintenance.LOOK_EVERY_S = 0.25
    maintenance.HOURLY_S = maintenance.DAILY_S = maintenance.MERGE_EVERY_S = 2.0
    maintenance.SHORTLY_S = maintenance.PUT_OFF_S = 1.0
    maintenance.SNAPSHOTS_KEPT = timedelta(seconds=2)
    # Not shorter than the reader's queries take.
    maintenance.FILES_KEPT = maintenance.ORPHANS_KEPT = timedelta(seconds=30)


if __name__ == "__main__":
    hurry()
    forkserver.main(forked.works)
