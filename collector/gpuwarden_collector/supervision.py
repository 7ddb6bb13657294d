"""Ends the collector when a part of it fails that nothing can replace."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class WriterFailedError(RuntimeError):
    """The writer thread ended by a fault; the process should end and be started again."""


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that raises what its block raises as it is, when nothing else went wrong."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


@contextmanager
def ending_with(ended: "asyncio.Future[None]") -> Iterator[None]:
    """Ends the block with WriterFailedError should the writer fail: a bug must not go unnoticed."""
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
        raise WriterFailedError(f"the writer has ended: {failure!r}") from failure
    finally:
        ended.remove_done_callback(end)
