"""Shares what all tests need."""

import gc
import importlib
import os
import pkgutil
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings
from tests.unchecked import skip_checks

IS_JUDGED = bool(os.environ.get("CI"))
LONGEST = (
    "end_to_end/test_up.py",
    "grafana/test_queries.py",
    "end_to_end/test_received.py",
    "end_to_end/test_pages.py",
    "bench/test_chaos.py",
    "cluster/test_cluster.py",
    "end_to_end/test_hostile_node.py",
    "end_to_end/test_crashes.py",
    "prometheus/",
    "rules/test_promql.py",
    "dashboards/test_browser_incidents.py",
    "end_to_end/",
    "cluster/",
    "bench/test_deterministic.py",
    "bench/",
)
"""Slow tests that take the most time, in this order; the first so that none is left for the end."""

# Timing is measured in bench/, never asserted: a busy machine must not fail a property. Examples are
# new ones each time for a developer, and the same ones where a change is judged.
settings.register_profile("gpuwarden", deadline=None, derandomize=IS_JUDGED)
settings.load_profile("gpuwarden")
skip_checks()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, and leave out of later collections what lives to the end.

    Modules and tests are a million objects, which each full collection would visit.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load no module without slow tests where only these are run: all modules are half a minute of each process."""
    if collection_path.suffix != ".py" or not config.option.markexpr.startswith("slow"):
        return None
    texts = (collection_path, collection_path.parent / "conftest.py")
    has_slow = any(b"mark.slow" in path.read_bytes() for path in texts if path.is_file())
    return None if has_slow else True


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes by their length: packed ones may have the time in them, and workers must find equal names."""
    return f"{argname}-of-{len(val)}-bytes" if isinstance(val, bytes) and len(val) > 40 else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest of the slow tests first."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("slow") is None:
        return len(LONGEST)
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((at for at, name in enumerate(LONGEST) if path.startswith(name)), len(LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that groups stay together, and where a change is judged load every module, whatever a process is given.

    Hypothesis draws on constants of the modules that are loaded: what a test before has happened
    to load would make other examples.
    """
    for item in session.items:
        is_grouped = item.get_closest_marker("xdist_group") is not None
        if (
            is_grouped
            and getattr(session.config.option, "loadgroup", False)
            and "@" not in item.nodeid
        ):
            raise pytest.UsageError("this pytest-xdist cannot mark groups of this pytest's tests")
    if not (IS_JUDGED and session.items):
        return
    project = tomllib.loads((session.config.rootpath / "pyproject.toml").read_text())
    for name in project["tool"]["importlinter"]["root_packages"]:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


@pytest.fixture
def fresh_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`NOW` of the module is that of the test: a module may be loaded minutes before its last test runs."""
    then = request.module.NOW
    now = datetime.now(UTC).replace(tzinfo=then.tzinfo)
    if then.microsecond == 0:
        now = now.replace(microsecond=0)
    monkeypatch.setattr(request.module, "NOW", now)
