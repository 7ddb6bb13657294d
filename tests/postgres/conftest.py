"""A collector that PostgreSQL's clients query, for all tests of this folder, with a few rows in it."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.collector.conftest import (  # noqa: F401  fixtures
    clock,
    data_dir,
    empty_store,
    eventually,
    start,
    wire_maker,
)
from tests.served import Served

from gpuwarden.clock import ManualClock
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_postgres.front import POSTGRES


@pytest.fixture(scope="package")
def address(
    tmp_path_factory: pytest.TempPathFactory,
    wire_maker: Any,  # noqa: F811
) -> Iterator[tuple[str, int]]:
    """Host and port of a collector with eight GPUs and ten seconds of them."""
    wire = wire_maker()
    settings = CollectorSettings(
        port=0,
        postgres_port=0,
        data_dir=tmp_path_factory.mktemp("postgres"),
    )
    served = Served(settings, ManualClock(wire.now), front=POSTGRES)
    served.begin()
    served.post(wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(8, range(10)))))
    assert served.collector is not None and served.collector.postgres is not None
    yield served.collector.postgres
    served.end()


Connect = Callable[..., psycopg.Connection[tuple[Any, ...]]]


@pytest.fixture
def connect(address: tuple[str, int]) -> Iterator[Connect]:
    """A connection of psycopg; autocommit by default."""
    opened = []

    def connected(**more: Any) -> psycopg.Connection[tuple[Any, ...]]:
        chosen = {"host": address[0], "port": address[1], "user": "anyone", "dbname": "gpuwarden"}
        made = psycopg.connect(**{**chosen, "autocommit": True, **more})
        opened.append(made)
        return made

    yield connected
    for one in opened:
        one.close()
