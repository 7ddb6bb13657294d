"""Probes tell each other only what is certain, and it counts for a while."""

from gpuwarden_agent.collect.shared_state import KEPT_S, SharedReading, SharedState


def test_a_look_counts_for_a_while() -> None:
    seen = SharedState()
    seen.processes = SharedReading(100.0, {"GPU-1": 0})
    assert seen.processes_on("GPU-1", 100.0 + KEPT_S) == 0
    assert seen.processes_on("GPU-1", 101.0 + KEPT_S) is None
    assert seen.processes_on("GPU-2", 100.0) is None


def test_a_shared_gpu_says_nothing_of_the_pod() -> None:
    seen = SharedState()
    seen.pods = SharedReading(
        0.0, {"GPU-1": frozenset({"a/x"}), "GPU-2": frozenset({"a/x", "b/y"})}
    )
    assert seen.only_pod_on("GPU-1", 1.0) == "a/x"
    assert seen.only_pod_on("GPU-2", 1.0) is None
