"""The slow tables: which a node has, how they add up, and that looking does not change them."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.models import SIMULATED, GpuModel, model_named
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator import Fault, FaultKind, Placement, SimulatedNode, Workload
from gpuwarden_simulator.faults.kinds import SPECS, misfit

H100 = model_named("H100-SXM-80GB")
KEYS = {
    "gpu_detail_samples": ("gpu",),
    "gpu_health_samples": ("gpu",),
    "link_samples": ("gpu", "link"),
    "infiniband_samples": ("device", "port"),
}


def by_key(reading: Reading, table: str) -> dict[tuple[object, ...], Row]:
    return {tuple(row[name] for name in KEYS[table]): row for row in reading.get(table, ())}


@each("model", SIMULATED)
def test_a_reading_of_any_model_is_true_to_the_contract(
    model: GpuModel, start_ms: int, check_reading: Callable[[Reading], None]
) -> None:
    node = SimulatedNode("n", 4, model, 1, [Placement((0, 1, 2, 3), Workload.TRAINING)])
    reading = node.read(start_ms)
    check_reading(node.describe())
    check_reading(reading)
    assert set(reading) == set(node.tables)
    assert len(reading["gpu_detail_samples"]) == len(reading["gpu_health_samples"]) == 4
    assert ("link_samples" in reading) is (bool(model.nvlinks) and not model.name.startswith("MI"))


@st.composite
def scripts(draw: st.DrawFn) -> tuple[GpuModel, list[Fault]]:
    model = draw(st.sampled_from([H100, *SIMULATED]))
    faults = []
    for kind in draw(st.lists(st.sampled_from(FaultKind), max_size=6)):
        begin_ms = draw(st.integers(0, 600_000))
        end_ms = draw(st.one_of(st.none(), st.integers(begin_ms + 1, 900_000)))
        if kind is FaultKind.REBOOT:
            end_ms = end_ms or begin_ms + 120_000
        gpu = draw(st.integers(0, 3)) if SPECS[kind].is_of_gpu else None
        options = {
            "code": 79,
            "link": draw(st.integers(0, 17)),
            "flap": draw(st.sampled_from([None, 20_000])),
        }
        options = {name: value for name, value in options.items() if name in SPECS[kind].options}
        fault = Fault(kind, begin_ms, end_ms, gpu, options)
        if misfit(fault, model, 4) is None:
            faults.append(fault)
    return model, faults


def resets_of(faults: list[Fault]) -> list[int]:
    kinds = (FaultKind.GPU_LOST, FaultKind.ROW_REMAP, FaultKind.REBOOT)
    ends = [fault.end_ms for fault in faults if fault.kind in kinds and fault.end_ms is not None]
    # What a board has ends with it.
    return ends + [f.begin_ms for f in faults if f.kind is FaultKind.BOARD_REPLACED]


@settings(max_examples=40, deadline=None)
@given(case=scripts(), spans=st.lists(st.integers(1, 200_000), min_size=1, max_size=8))
def test_whatever_goes_wrong_rows_stay_plausible_and_counters_fall_at_resets_only(
    case: tuple[GpuModel, list[Fault]],
    spans: list[int],
    start_ms: int,
    check_reading: Callable[[Reading], None],
    check_counters: Callable[[str, Row, Row], None],
) -> None:
    model, faults = case
    node = SimulatedNode("n", 4, model, 1, [Placement((0, 1), Workload.TRAINING), Placement((2,), Workload.INFERENCE), Placement((3,), None)], script=faults)  # fmt: skip
    again = SimulatedNode("n", 4, model, 1, [Placement((0, 1), Workload.TRAINING), Placement((2,), Workload.INFERENCE), Placement((3,), None)], script=faults)  # fmt: skip
    at_ms, last = 0, node.read(start_ms)
    assert again.read(start_ms) == last
    for span in spans:
        before_ms, at_ms = at_ms, at_ms + span
        reading = node.read(start_ms + at_ms)
        assert again.read(start_ms + at_ms) == reading
        check_reading(reading)
        for gpu in reading.get("gpu_samples", ()):
            assert 0 < gpu["power_watts"] <= gpu["power_limit_watts"]  # type: ignore[operator]
            assert gpu["memory_free_bytes"] >= 0  # type: ignore[operator]
            links = [r for r in reading.get("link_samples", ()) if r["gpu"] == gpu["gpu"]]
            if links:
                assert sum(r["tx_bytes_total"] for r in links) == gpu["nvlink_tx_bytes_total"]  # type: ignore[misc]
        if not any(before_ms < reset <= at_ms for reset in resets_of(faults)):
            for table in KEYS:
                known = by_key(last, table)
                for key, after in by_key(reading, table).items():
                    if key in known:
                        check_counters(table, known[key], after)
        last = {**last, **reading}


def test_a_long_gap_ends_where_short_ticks_do(start_ms: int) -> None:
    """Error counts and states are functions of time: they do not depend on how often one looks."""
    faults = [
        Fault(FaultKind.ECC_CORRECTED, 30_000, 400_000, 0, {"per_minute": 60}),
        Fault(FaultKind.NVLINK_DOWN, 50_000, None, 1, {"link": 3, "flap": 30_000}),
        Fault(FaultKind.INFINIBAND_DOWN, 50_000, None, None, {"flap": 30_000}),
        Fault(FaultKind.PCIE_DEGRADED, 10_000, 500_000, 0, {"replays_per_minute": 12}),
        Fault(FaultKind.ROW_REMAP, 20_000, 300_000, 1, {}),
    ]
    often, once = (SimulatedNode("n", 2, H100, 1, script=faults) for _ in range(2))
    once.read(start_ms)
    for second in range(0, 601, 10):
        fine = often.read(start_ms + 1000 * second)
    coarse = once.read(start_ms + 600_000)
    assert fine["gpu_health_samples"] == coarse["gpu_health_samples"]
    for table, column in (
        ("gpu_detail_samples", "pcie_replays_total"),
        ("gpu_detail_samples", "nvlinks_active"),
        ("link_samples", "recovery_errors_total"),
        ("infiniband_samples", "link_downed_total"),
        ("infiniband_samples", "state"),
    ):
        assert [r[column] for r in fine[table]] == [r[column] for r in coarse[table]], column
