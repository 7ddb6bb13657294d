"""A collector with eight GPUs and ten seconds of them, whose Prometheus API the tests of this folder ask."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.collector.conftest import wire_maker  # noqa: F401  a fixture
from tests.served import Served

from gpuwarden.clock import ManualClock
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.front import PROMETHEUS


@pytest.fixture(scope="package")
def served(
    tmp_path_factory: pytest.TempPathFactory,
    wire_maker: Any,  # noqa: F811
) -> Iterator[tuple[str, float]]:
    """The API's address, and the time in seconds of the last row."""
    wire = wire_maker()
    settings = CollectorSettings(
        port=0,
        data_dir=tmp_path_factory.mktemp("prometheus"),
    )
    served = Served(settings, ManualClock(wire.now), http_fronts=[PROMETHEUS])
    served.begin()
    rows = [
        wire.gpu_row(gpu, second, power_watts=300.0 + gpu)
        for second in range(10)
        for gpu in range(8)
    ]
    served.post(wire.zstd(wire.stream("gpu_samples", rows)))
    assert served.collector is not None
    yield served.collector.url + "/prometheus/api/v1", rows[-1]["ts"].timestamp()
    served.end()
