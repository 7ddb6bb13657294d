"""Defines the labelled loops of the recordings.

A label is the bottleneck that was built into the loop; verdicts never change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.diagnosis import Bottleneck


@dataclass(frozen=True, slots=True)
class Scenario:
    """A loop with a known bottleneck."""

    name: str
    truth: Bottleneck
    text: str
    also: frozenset[Bottleneck] = frozenset()
    """Other names for the same truth."""
    when_loaded: frozenset[Bottleneck] = frozenset()
    """Right as well where others use the node's cores: then they are short."""
    vague: frozenset[Bottleneck] = frozenset()
    """Classes that are true but say less: they count as unknown, not as wrong."""
    is_undecidable: bool = False
    """Nothing that is collected tells it: unknown is the best that can be said, and it has no score."""
    past: str = "none"
    """The hour before, where a verdict needs one: `worked`, `spun` or `none`."""

    def is_right(self, said: Bottleneck, is_loaded: bool = False) -> bool:
        """Whether a verdict is what the label says; `is_loaded`: others use the node as well."""
        return said is self.truth or said in self.also or (is_loaded and said in self.when_loaded)


_WORKS = frozenset({Bottleneck.COMPUTE_BOUND, Bottleneck.BUSY})
_SHORT = frozenset({Bottleneck.LOADER_CORES})

_ALL: tuple[Scenario, ...] = (
    Scenario("healthy", Bottleneck.COMPUTE_BOUND, "2 workers far ahead; main waits asleep", _WORKS),
    Scenario("healthy_spin", Bottleneck.COMPUTE_BOUND, "the same; main spins while it waits", _WORKS),
    Scenario("healthy_tight", Bottleneck.COMPUTE_BOUND, "1 worker at 80 % of a core keeps up", _WORKS, _SHORT),
    Scenario("loader_workers", Bottleneck.LOADER_WORKERS, "1 worker, a core is idle", when_loaded=_SHORT),
    Scenario("loader_cores", Bottleneck.LOADER_CORES, "3 workers under a CPU limit of 0.7 cores"),
    Scenario("loader_affinity", Bottleneck.LOADER_AFFINITY, "3 workers pinned to one of two cores"),
    Scenario("loader_main", Bottleneck.LOADER_MAIN, "num_workers=0, reads and decodes in the loop", vague=frozenset({Bottleneck.MAIN_THREAD})),
    Scenario("loader_threads", Bottleneck.LOADER_THREADS, "num_workers=0, 2 decoding threads cannot keep up"),
    Scenario("storage_disk", Bottleneck.STORAGE_DISK, "2 workers read a throttled disk with O_DIRECT"),
    Scenario("storage_network", Bottleneck.STORAGE_NETWORK, "2 workers fetch over a network, from far away"),
    Scenario("prefetch", Bottleneck.PREFETCH, "2 workers could keep up, every sixth batch takes long", when_loaded=_SHORT),
    Scenario("pin_copy", Bottleneck.PIN_COPY, "1 light worker, the pinning thread is full"),
    Scenario("host_bound", Bottleneck.HOST_BOUND, "2 workers far ahead, Python launches too slowly"),
    Scenario("checkpoint", Bottleneck.CHECKPOINT, "saves 1.5 GB sometimes"),
    Scenario("evaluation", Bottleneck.EVALUATION, "computes metrics on the CPU sometimes"),
    Scenario("epoch_restart", Bottleneck.EPOCH_RESTART, "short epochs, persistent_workers=False"),
    Scenario("small_batch", Bottleneck.SMALL_BATCH, "4 ms of work that take 6 ms to launch", frozenset({Bottleneck.HOST_BOUND})),
    Scenario("idle_held", Bottleneck.IDLE_HELD, "holds memory and does nothing"),
    Scenario("hang_blocked", Bottleneck.HUNG_BLOCKED, "2 ranks, one never comes to the barrier", past="worked"),
    Scenario("hang_spin", Bottleneck.HUNG_SPIN, "2 ranks in a kernel that never ends", vague=frozenset({Bottleneck.NOT_WORKING}), past="spun"),
    Scenario("hang_disk", Bottleneck.HUNG_BLOCKED, "blocked permanently in a read of a disk (D state)", past="worked"),
    Scenario("serving", Bottleneck.SERVING, "a known inference server, irregular requests"),
    Scenario("serving_own", Bottleneck.SERVING, "a server of one's own, irregular requests", is_undecidable=True),
)  # fmt: skip
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
