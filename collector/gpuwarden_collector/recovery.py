"""Moves the second copies of a lost collector's segments into the lake that it shared with this one."""

from dataclasses import replace

from gpuwarden.clock import Clock, iso_text
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.second_copy import CopyConflictError, CopyFolder
from gpuwarden_collector.storage.segment import FOLDER, segment_numbers


async def recover(settings: CollectorSettings, collector: str, clock: Clock) -> int:
    """Seal the copies, delete them, and refuse further ones; returns the number of rows. May be run again.

    Raises StartError.
    """
    copies = CopyFolder(settings.data_dir)
    try:
        data_dir = copies.data_dir(collector)
        if not segment_numbers(data_dir / FOLDER):
            raise StartError(
                f"{data_dir} has no segments: see `gpuwarden collector recover` for all copies"
            )
        if settings.catalog is None:
            raise StartError(
                "there is no lake that both collectors share (`catalog`): start a collector with"
                f" --data-dir {data_dir} instead, which serves the rows that were not sealed"
            )
        # Before the copies are sealed: what the collector sent later would count as sealed.
        copies.note_recovered(collector, iso_text(clock.now()))
        alone = replace(
            settings, data_dir=data_dir, host="127.0.0.1", port=0, postgres_port=None, tls_cert=None,
            tls_key=None, tls_ca=None, require_tokens=True, standby_url=None,
        )  # fmt: skip
        async with running(alone, clock) as opened:
            rows = await opened.seal()
        if left := segment_numbers(data_dir / FOLDER):
            raise StartError(f"{data_dir}: segments {left} are not sealed: run it again")
        copies.remove(collector)
    except (CopyConflictError, StoreUnavailableError, RowsRefusedError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from error
    return rows
