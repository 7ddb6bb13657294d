"""Runs a test over a list of hundreds as one test, which names every case that failed."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Like `pytest.mark.parametrize`, but one test: fixtures are made once for all cases."""
    known = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    listed = list(cases)
    assert listed, "a test of no case"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for case in listed:
                values = case if len(known) > 1 else (case,)
                try:
                    done = test(**fixtures, **dict(zip(known, values, strict=True)))
                    if inspect.isawaitable(done):
                        asyncio.run(done)
                except Exception as error:  # noqa: BLE001  # in every case the next one is tried
                    error.add_note(f"case: {case!r}")
                    failures.append(error)
            if failures:
                text = f"{len(failures)} of {len(listed)} cases failed"
                raise ExceptionGroup(text, failures)

        wanted = inspect.signature(test)
        rest = [p for p in wanted.parameters.values() if p.name not in known]
        run.__signature__ = wanted.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
