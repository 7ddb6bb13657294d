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
    Port,
    PortTrouble,
    adapters_of,
    carry,
    link_rows,
    link_templates,
    port_row,
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


def test_links_begin_anew_with_the_driver() -> None:
    carried = LinkBytes([500, 700], [500, 700])
    carried.share(10 * KIB, 10 * KIB, {})
    assert carried.tx_kib == [5, 5]


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


def test_a_bridge_needs_two_boards() -> None:
    devices = devices_of("RTX-3090", 1)
    assert link_templates(devices[0], devices) == ()


@pytest.mark.parametrize(
    ("model", "column"),
    [("H100-SXM", "recovery_errors_total"), ("B200", "recoveries_failed_total")],
)
def test_a_link_that_is_down_says_so_in_the_columns_of_its_generation(
    model: str, column: str
) -> None:
    devices = devices_of(model)
    rows = link_rows(link_templates(devices[0], devices), LinkBytes([9] * 18, [9] * 18), {3: DOWN})
    assert [row["active"] for row in rows].count(False) == 1
    assert (rows[3]["active"], rows[3]["speed_bytes_per_second"], rows[3][column]) == (
        False,
        None,
        2,
    )
    assert rows[4][column] == 0


@pytest.mark.parametrize(
    ("model", "gpus", "adapters", "gigabits"),
    [("H100-SXM", 8, 8, 400), ("A100-SXM-80GB", 8, 8, 200), ("B300", 4, 4, 800), ("V100-SXM-32GB", 8, 4, 100)],
)  # fmt: skip
def test_large_boards_have_adapters_beside_them(
    model: str, gpus: int, adapters: int, gigabits: int
) -> None:
    found = adapters_of(model_named(model), gpus)
    assert (found.count, found.bits_per_second) == (adapters, gigabits * 1e9)


def test_boards_of_small_nodes_have_none() -> None:
    for model in ("L4-24GB", "RTX-4090", "T4", "MI300X", "H100-PCIe"):
        assert adapters_of(model_named(model), 8).count == 0


def test_a_port_that_is_down_drops_what_it_had_to_carry() -> None:
    port, adapters = Port(1_000_000, 0.0), adapters_of(model_named("H100-SXM"), 8)
    carry(port, 1e9, 10, None)
    assert port.tx_bytes > 81_000_000
    carried = port.tx_bytes
    down = PortTrouble(is_down=True, downs=1)
    carry(port, 2e9, 10, down)
    row = port_row(adapters, 3, port, down)
    assert (port.tx_bytes, row["state"], row["device"]) == (carried, "down", "mlx5_3")
    assert row["tx_discards_total"] > 0  # type: ignore[operator]


def test_an_adapter_is_on_the_numa_node_of_the_gpu_beside_it() -> None:
    adapters = adapters_of(model_named("H100-SXM"), 8)
    nodes = [port_row(adapters, n, Port(0, 0.0), None)["numa_node"] for n in range(8)]
    assert nodes == [0, 0, 0, 0, 1, 1, 1, 1]
