"""Instances of clouds: each has a model of the catalogue, and prices that can be true."""

from collections import Counter

import pytest

from gpuwarden.instances import CLOUDS, INSTANCES, Instance, find_instance
from gpuwarden.models import MODELS

NAMES = {model.name: model for model in MODELS}


@pytest.mark.parametrize("one", INSTANCES, ids=lambda one: one.name)
def test_an_instance_is_whole(one: Instance) -> None:
    assert one.cloud in CLOUDS
    assert one.model in NAMES
    assert 1 <= one.gpus <= 16
    assert one.vcpus >= one.gpus
    assert one.memory_gib >= 4
    if one.usd_per_hour is not None:
        assert one.usd_per_gpu_hour
        # From an Inferentia to a GB300, whatever CPUs are beside it.
        assert 0.2 < one.usd_per_gpu_hour < 20
        assert 0 < (one.reserved_usd_per_hour or 0.01) < one.usd_per_hour
    assert find_instance(one.name.upper()) is one


def test_names_are_of_one_instance_each() -> None:
    assert max(Counter(one.name.lower() for one in INSTANCES).values()) == 1
    assert find_instance("p9.huge") is None
    assert find_instance(None) is None


def test_more_of_the_same_gpu_costs_in_proportion() -> None:
    """Wrong digits show as another price of a GPU in one family; a host with more CPUs may cost three times as much."""
    for cloud in CLOUDS:
        for model in NAMES:
            prices = [
                one.usd_per_gpu_hour
                for one in INSTANCES
                if (one.cloud, one.model) == (cloud, model) and one.usd_per_gpu_hour
            ]
            if prices and model not in ("T4-16GB", "A10G-24GB", "L4-24GB", "L40S-48GB"):
                assert max(prices) <= 2.7 * min(prices), (cloud, model, prices)


@pytest.mark.parametrize(
    ("name", "usd"),
    [("p4d.24xlarge", 21.957642), ("BM.GPU.H100.8", 80.0), ("trn1.32xlarge", 21.5)],
)
def test_prices_are_those_of_the_source(name: str, usd: float) -> None:
    found = find_instance(name)
    assert found
    assert found.usd_per_hour == usd
