"""Memory errors, repairs and what the driver asks for; and zeroes that must not be believed."""

from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import (
    A100,
    A100_FIELDS,
    GEFORCE,
    GEFORCE_FIELDS,
    H100_IDLE,
    H100_IDLE_FIELDS,
    UNSUPPORTED,
    V100,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpu import read_health
from gpuwarden_agent.collect.nvidia.metrics import fabric_health, recovery_action
from gpuwarden_agent.collect.nvidia.nvml import FabricInfo
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import Row

HOPPER, AMPERE, TURING, VOLTA = 9, 7, 6, 5
REMAPS = {"remap_pending", "remap_failed", "remapped_rows_corrected_total", "remap_banks_max"}
PAGES = {"retired_pages_corrected_total", "retired_pages_uncorrected_total"}


def read(
    answers: dict[str, Any] | None = None,
    fields: dict[int, Any] | None = None,
    *,
    clock: ManualClock,
    architecture: int | None = HOPPER,
    is_mig: bool = False,
) -> Row:
    device = FakeDevice(H100_IDLE | (answers or {}), H100_IDLE_FIELDS | (fields or {}))
    return coerce("gpu_health_samples", read_health(Query(device, clock), architecture, is_mig))


def test_a_board_without_ecc_has_no_row_remapper_whatever_the_driver_says(
    clock: ManualClock,
) -> None:
    row = read(GEFORCE, GEFORCE_FIELDS, clock=clock, architecture=TURING)
    assert row == {"recovery_action": "none", "inforom_valid": True}


def test_ecc_switched_off_counts_no_errors(clock: ManualClock) -> None:
    row = read({"ecc_modes": (False, True)}, clock=clock)
    assert not [column for column in row if column.startswith(("ecc_", "dram_", "sram_"))]
    assert row.keys() >= REMAPS


def test_an_older_call_gives_totals_where_the_fields_are_not_there(clock: ManualClock) -> None:
    row = read(
        {"ecc_errors": lambda fate, since: 10 * since + fate},
        dict.fromkeys(range(3, 7), UNSUPPORTED),
        clock=clock,
    )
    assert row["ecc_uncorrected_volatile_total"] == 1
    assert row["ecc_corrected_aggregate_total"] == 10


def test_remapped_rows_come_from_the_call_where_the_fields_are_not_there(
    clock: ManualClock,
) -> None:
    fields = dict.fromkeys(range(142, 146), UNSUPPORTED)
    row = read({"remapped_rows": (5, 2, 1, 0)}, fields, clock=clock)
    assert (row["remapped_rows_corrected_total"], row["remapped_rows_uncorrected_total"]) == (5, 2)
    assert (row["remap_pending"], row["remap_failed"]) == (True, False)


def test_a_histogram_without_banks_is_none(clock: ManualClock) -> None:
    row = read({"remap_histogram": (0, 0, 0, 0, 0)}, clock=clock)
    assert not [column for column in row if column.startswith("remap_banks")]


@pytest.mark.parametrize("architecture", [VOLTA, TURING])
def test_older_gpus_retire_pages_and_remap_no_rows(architecture: int, clock: ManualClock) -> None:
    row = read(V100, A100_FIELDS, clock=clock, architecture=architecture)
    assert (row["retired_pages_corrected_total"], row["retired_pages_uncorrected_total"]) == (3, 1)
    assert row["retired_pages_pending"] is True
    assert not REMAPS & row.keys()


def test_newer_gpus_remap_rows_and_retire_no_pages_whatever_the_driver_says(
    clock: ManualClock,
) -> None:
    fields = A100_FIELDS | {29: 0, 30: 0, 31: 0}
    row = read(A100, fields, clock=clock, architecture=AMPERE)
    assert not PAGES & row.keys()
    assert row.keys() >= REMAPS


def test_a_broken_inforom_is_told_and_no_failure(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"validate_inforom": Fails(nvml.CORRUPTED_INFOROM)})
    query = Query(device, clock)
    assert read_health(query, HOPPER, is_mig=False)["inforom_valid"] is False
    assert not query.failed


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "none"), (1, "gpu_reset"), (4, "drain_and_reset"), (7, "system_reboot"), (9, "unknown_9")],
)
def test_a_recovery_action_is_a_word(number: int, words: str, clock: ManualClock) -> None:
    assert recovery_action(number) == words
    assert read(fields={230: number}, clock=clock)["recovery_action"] == words


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x000, None),
        (0x1AA, "healthy"),
        (0x002, "healthy"),
        (0x1A9, "bandwidth_degraded"),
        (0x1A6, "route_recovery"),
        (0x19A, "route_unhealthy"),
        (0x16A, "access_timeout_recovery"),
        (0x5AA, "incorrect_configuration"),
        (0x299, "bandwidth_degraded,route_unhealthy,incorrect_configuration"),
        (0x1000, None),
    ],
)
def test_the_fabrics_health_is_told_in_words(mask: int, words: str | None) -> None:
    assert fabric_health(mask) == words


@pytest.mark.parametrize(
    ("info", "columns"),
    [
        (FabricInfo(0, 0, 0), {}),
        (FabricInfo(1, 999, 0), {"fabric_state": "not_started", "fabric_health": None}),
        (FabricInfo(2, 999, 0), {"fabric_state": "in_progress", "fabric_health": None}),
        (
            FabricInfo(3, 0, 0x1AA),
            {"fabric_state": "completed", "fabric_health": "healthy", "fabric_status": "success"},
        ),
        (
            FabricInfo(3, 12345, 0),
            {"fabric_state": "completed", "fabric_health": None, "fabric_status": "code_12345"},
        ),
        (FabricInfo(9, 0, 0x1AA), {}),
    ],
)
def test_how_registration_ended_is_told_once_it_has(
    info: FabricInfo, columns: Row, clock: ManualClock
) -> None:
    row = read({"fabric_info": info}, clock=clock)
    assert {c: v for c, v in row.items() if c.startswith("fabric_")} == {
        c: v for c, v in columns.items() if v is not None
    }
