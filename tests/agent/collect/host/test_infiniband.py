"""InfiniBand ports: rows from trees of /sys as kernels lay them out, and from an H100 host's own."""

import errno
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect import files
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.host.infiniband import (
    InfiniBandProbe,
    parse_count,
    parse_physical_state,
    parse_rate,
    parse_state,
)
from gpuwarden_agent.probe import Row
from gpuwarden_agent.queue.rows import impossible_columns

H100 = Path(__file__).parents[5] / "shared/data/infiniband/sys-class-infiniband-h100.tar.gz"
STAMP: Row = {"ts": 0, "node": "n1", "simulated": False}

UP = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "counters/port_xmit_data": "1000",
    "counters/port_rcv_data": "2000",
    "counters/port_xmit_packets": "30",
    "counters/port_rcv_packets": "40",
    "counters/port_xmit_wait": "5",
    "counters/port_xmit_discards": "6",
    "counters/port_rcv_errors": "7",
    "counters/symbol_error": "8",
    "counters/link_downed": "9",
    "counters/link_error_recovery": "10",
    "counters/local_link_integrity_errors": "11",
    "counters/excessive_buffer_overrun_errors": "12",
    "hw_counters/out_of_sequence": "13",
    "hw_counters/local_ack_timeout_err": "14",
    "hw_counters/roce_slow_restart": "15",
}

UP_ROW = {
    "device": "mlx5_0",
    "port": 1,
    "link_layer": "InfiniBand",
    "state": "active",
    "physical_state": "LinkUp",
    "rate_bits_per_second": 400e9,
    "tx_bytes_total": 4000,
    "rx_bytes_total": 8000,
    "tx_packets_total": 30,
    "rx_packets_total": 40,
    "tx_waits_total": 5,
    "tx_discards_total": 6,
    "rx_errors_total": 7,
    "symbol_errors_total": 8,
    "link_downed_total": 9,
    "link_recoveries_total": 10,
    "local_integrity_errors_total": 11,
    "buffer_overruns_total": 12,
    "out_of_sequence_total": 13,
    "ack_timeouts_total": 14,
    "roce_slow_restarts_total": 15,
}


def plant(sys: Path, files: dict[str, str], device: str = "mlx5_0", port: str = "1") -> Path:
    """Lay out a port; gives its folder."""
    folder = sys / "class/infiniband" / device / "ports" / port
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    return folder


def rows(probe: InfiniBandProbe) -> list[Row]:
    found = list(probe.read(0)["infiniband_samples"])
    for row in found:
        assert impossible_columns("infiniband_samples", STAMP | row) == ()
    return found


def test_every_file_is_its_column_in_the_catalogues_unit(tmp_path: Path) -> None:
    plant(tmp_path, UP)
    assert rows(InfiniBandProbe(tmp_path)) == [UP_ROW]


@pytest.mark.parametrize("file", sorted(UP))
def test_a_file_that_is_missing_takes_no_other_reading_with_it(tmp_path: Path, file: str) -> None:
    (plant(tmp_path, UP) / file).unlink()
    probe = InfiniBandProbe(tmp_path)
    (row,) = rows(probe)
    assert row.items() <= UP_ROW.items()
    assert len(UP_ROW) - len(row) == 1
    assert not probe.failed


@pytest.mark.parametrize(("text", "node"), [("1", 1), ("0", 0), ("-1", None)])
def test_an_adapter_says_its_numa_node_if_the_host_has_several(
    tmp_path: Path, text: str, node: int | None
) -> None:
    plant(tmp_path, UP)
    device = tmp_path / "class/infiniband/mlx5_0/device"
    device.mkdir()
    (device / "numa_node").write_text(f"{text}\n")
    probe = InfiniBandProbe(tmp_path)
    assert rows(probe) == [UP_ROW if node is None else UP_ROW | {"numa_node": node}]
    assert not probe.failed


def test_a_port_without_a_link_is_a_row_without_rate_and_traffic(tmp_path: Path) -> None:
    plant(tmp_path, UP | {"state": "1: DOWN", "phys_state": "2: Polling"})
    assert rows(InfiniBandProbe(tmp_path)) == [
        {
            "device": "mlx5_0",
            "port": 1,
            "link_layer": "InfiniBand",
            "state": "down",
            "physical_state": "Polling",
            "link_downed_total": 9,
            "link_recoveries_total": 10,
        }
    ]


def test_a_port_that_came_back_has_its_traffic_again(tmp_path: Path) -> None:
    folder = plant(tmp_path, UP)
    probe = InfiniBandProbe(tmp_path)
    (folder / "phys_state").write_text("3: Disabled\n")
    assert "tx_bytes_total" not in rows(probe)[0]
    (folder / "phys_state").write_text("5: LinkUp\n")
    assert rows(probe) == [UP_ROW]


def test_a_driver_that_counts_in_bytes_is_read_in_bytes(tmp_path: Path) -> None:
    """EFA has neither the classic counters nor a link layer with a name of its own."""
    efa = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "100 Gb/sec (4X EDR)",
        "link_layer": "Unspecified",
        "hw_counters/tx_bytes": "4001",
        "hw_counters/rx_bytes": "8003",
        "hw_counters/tx_pkts": "5",
        "hw_counters/rx_pkts": "6",
    }
    plant(tmp_path, efa, "efa_0")
    (row,) = rows(InfiniBandProbe(tmp_path))
    assert (row["tx_bytes_total"], row["rx_bytes_total"]) == (4001, 8003)
    assert (row["tx_packets_total"], row["rx_packets_total"]) == (5, 6)


def test_a_full_counter_of_traffic_is_absent_and_one_of_errors_is_not(tmp_path: Path) -> None:
    full = dict.fromkeys((name for name in UP if "port_xmit" in name), str(2**32 - 1))
    plant(tmp_path, UP | full | {"counters/symbol_error": "65535", "counters/link_downed": "255"})
    (row,) = rows(InfiniBandProbe(tmp_path))
    assert not {"tx_bytes_total", "tx_packets_total", "tx_waits_total"} & row.keys()
    assert row["rx_bytes_total"] == 8000
    assert (row["symbol_errors_total"], row["link_downed_total"]) == (65535, 255)


def test_a_counter_that_the_port_does_not_have_is_absent_and_no_failure(tmp_path: Path) -> None:
    plant(tmp_path, dict.fromkeys(UP, "N/A (no PMA)") | {k: UP[k] for k in ("state", "phys_state")})
    probe = InfiniBandProbe(tmp_path)
    assert rows(probe)[0].keys() == {"device", "port", "state", "physical_state", "link_layer"}
    assert probe.failed.keys() == {"rate: not a rate: 'N/A (no PMA)\\n'"}


@pytest.mark.parametrize("garbage", ["", "garbage", "-5", "9" * 400, "\x00\xff", "1e3", "٣"])
def test_garbage_in_every_file_leaves_the_port_a_row(tmp_path: Path, garbage: str) -> None:
    plant(tmp_path, dict.fromkeys(UP, garbage) | {"phys_state": "5: LinkUp"})
    probe = InfiniBandProbe(tmp_path)
    (row,) = rows(probe)
    assert row.keys() <= {"device", "port", "physical_state", "link_layer"}
    assert probe.failed["others"] == 0
    assert sum(probe.failed.values()) >= 15


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        (errno.EINVAL, False),
        (errno.EOPNOTSUPP, False),
        (errno.EACCES, True),
        (errno.EIO, True),
        (errno.ETIMEDOUT, True),
    ],
)
def test_what_the_port_lacks_is_told_from_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, counted: bool
) -> None:
    """No file of ours answers so: the system call is the outside world here."""
    plant(tmp_path, UP)
    really = os.open

    def fails(path: Any, flags: int) -> int:
        if Path(path).name == "port_rcv_data":
            raise OSError(code, os.strerror(code))
        return really(path, flags)

    monkeypatch.setattr(files.os, "open", fails)
    probe = InfiniBandProbe(tmp_path)
    assert rows(probe) == [{k: v for k, v in UP_ROW.items() if k != "rx_bytes_total"}]
    expected = {f"port_rcv_data: {errno.errorcode[code]}": 1} if counted else {}
    assert probe.failed == expected


def test_ports_are_in_the_order_of_people(tmp_path: Path) -> None:
    for device, port in (("mlx5_10", "1"), ("mlx5_2", "2"), ("mlx5_2", "1"), ("mlx5_bond_0", "1")):
        plant(tmp_path, {"state": "1: DOWN"}, device, port)
    plant(tmp_path, {"state": "1: DOWN"}, "mlx5_2", "not a port")
    (tmp_path / "class/infiniband/empty").mkdir()
    found = [(row["device"], row["port"]) for row in rows(InfiniBandProbe(tmp_path))]
    assert found == [("mlx5_2", 1), ("mlx5_2", 2), ("mlx5_10", 1), ("mlx5_bond_0", 1)]


def test_the_agent_watches_the_ports_that_there_are(tmp_path: Path, clock: ManualClock) -> None:
    nowhere = tmp_path / "nowhere"

    def names() -> list[str]:
        found = discover("none", clock)
        probes = found.all_probes(tmp_path, clock, nowhere, nowhere, tmp_path)
        return [probe.name for probe in probes]

    assert names() == ["host"]
    plant(tmp_path, UP)
    assert names() == ["host", "infiniband"]


def test_an_adapter_that_goes_and_comes_is_followed(tmp_path: Path) -> None:
    folder = plant(tmp_path, UP)
    probe = InfiniBandProbe(tmp_path)
    adapter, away = folder.parents[1], tmp_path / "away"
    adapter.rename(away)
    assert rows(probe) == []
    away.rename(adapter)
    assert rows(probe) == [UP_ROW]


def test_only_what_is_due_is_read(tmp_path: Path) -> None:
    plant(tmp_path, UP)
    assert InfiniBandProbe(tmp_path).read(0, {"something_else"}) == {}


@pytest.mark.skipif(not H100.exists(), reason="no /sys of an H100 host at ../shared/data")
def test_all_ports_of_an_h100_host_are_read(tmp_path: Path) -> None:
    with tarfile.open(H100) as archive:
        archive.extractall(tmp_path / "class")
    (folder,) = (tmp_path / "class").iterdir()
    folder.rename(tmp_path / "class/infiniband")
    probe = InfiniBandProbe(tmp_path)
    found = {str(row["device"]): row for row in rows(probe)}
    assert list(found) == [*(f"mlx5_{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)), "mlx5_bond_0"]
    assert not probe.failed
    assert {row["state"] for row in found.values()} == {"active"}
    assert {row["rate_bits_per_second"] for row in found.values()} == {400e9, 200e9}
    assert found["mlx5_bond_0"]["link_layer"] == "Ethernet"
    assert found["mlx5_0"]["tx_bytes_total"] == 4 * 230442669431839
    assert found["mlx5_0"]["buffer_overruns_total"] == 15
    assert found["mlx5_1"]["link_downed_total"] == 255


def test_states_and_rates_are_read_as_kernels_write_them() -> None:
    assert parse_state("5: ACTIVE_DEFER\n") == "active_defer"
    assert parse_physical_state("4: PortConfigurationTraining\n") == "PortConfigurationTraining"
    assert parse_rate("2.5 Gb/sec (1X SDR)\n") == 2.5e9
    assert parse_rate("800 Gb/sec (4X XDR)\n") == 800e9


@given(st.integers(0, 2**64 - 1), st.sampled_from(["", "\n", " \n"]))
def test_every_counter_of_the_kernel_is_read_exactly(number: int, end: str) -> None:
    assert parse_count(f"{number}{end}") == number


@settings(max_examples=40)
@given(st.text(max_size=40))
def test_no_text_is_more_than_a_value_error(text: str) -> None:
    for parser in (parse_count, parse_rate, parse_state, parse_physical_state):
        try:
            parser(text)
        except ValueError as error:
            assert str(error).startswith("not a ")
