"""Links share what their GPU carries, to the last KiB, and ports carry what fits their node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden_simulator.devices.hardware import make_device
from gpuwarden_simulator.devices.links import (
    KIB,
    LinkBytes,
    LinkTrouble,
    link_templates,
)

DOWN = LinkTrouble(is_down=True, downs=2)


def devices_of(model: str, gpus: int = 2) -> list:
    return [make_device(model_named(model), "s", i, gpus) for i in range(gpus)]


@given(
    looks=st.lists(
        st.tuples(st.integers(0, 10**15), st.sets(st.integers(0, 17), max_size=17)), max_size=10
    )
)
def test_links_and_gpu_add_up_and_no_link_runs_backwards(
    looks: list[tuple[int, set[int]]],
) -> None:
    carried, total = LinkBytes([0] * 18, [0] * 18), 0
    for more, down in looks:
        before, total = list(carried.tx_kib), total + more
        carried.share(total, total // 2, dict.fromkeys(down, DOWN))
        assert sum(carried.tx_kib) == total // KIB
        assert sum(carried.rx_kib) == total // 2 // KIB
        assert all(new >= old for old, new in zip(before, carried.tx_kib, strict=True))
        assert all(carried.tx_kib[link] == before[link] for link in down)


@pytest.mark.parametrize(
    ("model", "links", "version", "speed", "remote"),
    [
        ("H100-SXM", 18, 4, 26.562e9, "switch"),
        ("A100-SXM-80GB", 12, 3, 25e9, "switch"),
        ("B200", 18, 5, 50e9, "switch"),
        ("H100-NVL", 12, 4, 26.562e9, "gpu"),
        ("RTX-3090", 4, 3, 14.062e9, "gpu"),
        ("L40S", 0, None, None, None),
        ("MI300X", 0, None, None, None),
    ],
)
def test_links_are_those_of_the_model(
    model: str, links: int, version: int | None, speed: float | None, remote: str | None
) -> None:
    devices = devices_of(model)
    rows = link_templates(devices[0], devices)
    assert len(rows) == links
    assert {row["link"] for row in rows} == set(range(links))
    for row in rows:
        assert (row["version"], row["remote_type"]) == (version, remote)
        assert row["speed_bytes_per_second"] == speed
        if remote == "gpu":
            assert row["remote_pci_bus_id"] == devices[1].pci_bus_id
