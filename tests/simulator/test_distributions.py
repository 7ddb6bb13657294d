"""A simulated fleet is spread like real ones: idle share, busy share, power and temperature."""

import csv
from pathlib import Path
from statistics import median

import pytest

from gpuwarden.models import model_named
from gpuwarden_simulator import Placement, SimulatedNode

DISTRIBUTIONS = Path(__file__).parents[3] / "shared" / "data" / "distributions"
pytestmark = pytest.mark.skipif(
    not DISTRIBUTIONS.is_dir(), reason="no real distributions beside this checkout"
)

NODES = 300


@pytest.fixture(scope="module")
def samples(start_ms: int) -> list[dict]:
    """One look at 300 nodes of four A100 each, their jobs drawn, spread over two days."""
    model = model_named("A100-SXM-80GB")
    looks = []
    for number in range(NODES):
        placements = [Placement((gpu,), None) for gpu in range(4)]
        node = SimulatedNode(f"n{number}", 4, model, 1, placements)
        looks += node.read(start_ms + number * 577_000)["gpu_samples"]
    return looks


def percentile(name: str, wanted: float, column: int = 0) -> float:
    """A file holds pairs of columns: value, percentile."""
    with (DISTRIBUTIONS / name).open() as file:
        rows = list(csv.reader(file))[1:]
    return next(float(r[column]) for r in rows if float(r[column + 1]) >= wanted)


def share_at_most(name: str, value: float) -> float:
    with (DISTRIBUTIONS / name).open() as file:
        rows = list(csv.reader(file))[1:]
    return max(float(r[1]) for r in rows if float(r[0]) <= value) / 100


@pytest.fixture(scope="module")
def util(samples: list[dict]) -> list[float]:
    return [row["util_percent"] for row in samples]


def test_the_idle_share_lies_within_the_range_of_real_clusters(util: list[float]) -> None:
    names = ("util_gpu_kalos.csv", "util_gpu_seren.csv", "util_gpu_philly.csv")
    real = [share_at_most(name, 1) for name in names]
    idle = sum(value <= 1 for value in util) / len(util)
    assert min(real) - 0.08 <= idle <= max(real) + 0.05


def test_the_busy_share_lies_between_philly_and_the_llm_clusters(util: list[float]) -> None:
    busiest = 1 - share_at_most("util_gpu_seren.csv", 89)
    calmest = 1 - share_at_most("util_gpu_philly.csv", 89)
    busy = sum(value >= 90 for value in util) / len(util)
    assert calmest - 0.05 <= busy <= busiest + 0.05


def test_temperatures_are_those_of_well_cooled_clusters(samples: list[dict]) -> None:
    core = sorted(row["temperature_celsius"] for row in samples)
    real_p50 = percentile("gpu_temp_kalos.csv", 50)
    real_p90 = percentile("gpu_temp_kalos.csv", 90)
    assert median(core) == pytest.approx(real_p50, abs=8)
    assert core[int(0.9 * len(core))] == pytest.approx(real_p90, abs=8)
    memory = median(row["memory_temperature_celsius"] for row in samples)
    assert memory == pytest.approx(percentile("gpu_temp_kalos.csv", 50, 2), abs=8)


def test_power_spans_the_same_range(samples: list[dict]) -> None:
    power = sorted(row["power_watts"] for row in samples)
    assert power[len(power) // 10] == pytest.approx(percentile("gpu_power_kalos.csv", 10), rel=0.15)
    assert power[9 * len(power) // 10] == pytest.approx(
        percentile("gpu_power_kalos.csv", 90), rel=0.25
    )


def test_sms_are_as_active_as_in_real_clusters() -> None:
    """The clusters have A100s, whose driver does not tell an agent: H100s do the same work here."""
    model, active = model_named("H100-SXM-80GB"), []
    for number in range(NODES):
        node = SimulatedNode(
            f"n{number}", 4, model, 1, [Placement((gpu,), None) for gpu in range(4)]
        )
        rows = node.read(1_763_683_200_000 + number * 577_000)["gpu_detail_samples"]
        active += [float(row["sm_active_percent"]) for row in rows]  # type: ignore[arg-type]
    active.sort()
    names = ("util_gpu_kalos_full.csv", "util_gpu_seren.csv")
    for share in (50, 75, 90):
        real = [percentile(name, share, 4) for name in names]
        assert min(real) - 12 <= active[len(active) * share // 100] <= max(real) + 12, share
