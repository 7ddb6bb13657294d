"""Ends the collector when a part fails that cannot be restarted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class WriterFailedError(RuntimeError):
    """The writer thread failed; the process should end and be restarted."""


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises a single exception as it is, without an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


@contextmanager
def ending_with(ended: "asyncio.Future[None]") -> Iterator[None]:
    """End the block with WriterFailedError when the writer fails."""
    owner = asyncio.current_task()
    assert owner is not None

    def end(future: "asyncio.Future[None]") -> None:
        if future.exception() is not None:
            owner.cancel()

    ended.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        failure = ended.exception() if ended.done() else None
        if failure is None:
            raise
        owner.uncancel()
        raise WriterFailedError(f"the writer has failed: {failure!r}") from failure
    finally:
        ended.remove_done_callback(end)
