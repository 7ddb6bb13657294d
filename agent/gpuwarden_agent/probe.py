"""Defines the interface of a probe, which the sampler reads.

A probe takes readings from one source: one GPU, the host, the GPU processes of the node, a whole
simulated node. The sampler gives every blocking probe a thread of its own and a deadline, so a
driver call that hangs affects its own GPU only. Probes add neither `ts` nor `node` nor
`simulated` to their rows: the sampler stamps them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

Value = int | float | str | bool | None
"""A cell. TIMESTAMP cells are milliseconds since the epoch. None, or no key: absent."""

Row = dict[str, Value]
"""Column name to value, columns of `gpuwarden.schema`."""

Reading = Mapping[str, Sequence[Row]]
"""Rows by table name."""


class ProbeError(Exception):
    """The source gave no reading; the message says what failed and where.

    `kind` is the kind of its event ("gpu_lost", "driver_not_loaded", "probe_failed").
    """

    def __init__(self, message: str, *, kind: str = "probe_failed") -> None:
        super().__init__(message)
        self.kind = kind


class Probe(Protocol):
    """Takes readings from one source. Methods of one probe never run at the same time."""

    @property
    def name(self) -> str:
        """Unique within the agent, for logs and events: "host", "gpu0"."""
        ...

    @property
    def tables(self) -> Mapping[str, int]:
        """Tables that `read` fills, and seconds between readings, at the seconds of the wall clock that
        the number divides.
        """
        ...

    @property
    def simulated(self) -> bool:
        """Whether the rows are simulated."""
        ...

    @property
    def blocking(self) -> bool:
        """Whether a call may block and needs a thread; False: it only computes."""
        ...

    @property
    def gpu_uuid(self) -> str | None:
        """The GPU that the probe reads; None: not one GPU."""
        ...

    def describe(self) -> Reading:
        """Inventory rows: tables `gpus`, and `nodes` with the columns it knows.

        Called at start and every minute; the sampler ships what changed. Raises ProbeError.
        """
        ...

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """Samples for the tick `ts_ms`, of the tables that are `due` (None: of all).

        The result has a key for each due table that was read, also when it has no rows; a due table
        without its key failed. Rates need two readings, so the first call returns none. Raises
        ProbeError when the source gives no reading at all.
        """
        ...

    def close(self) -> None:
        """Release the source."""
        ...


class HostedProbe:
    """Defaults of a probe that reads the host: its calls may block, it has no inventory and keeps nothing open."""

    simulated = False
    blocking = True
    gpu_uuid: str | None = None

    def describe(self) -> Reading:
        """No inventory."""
        return {}

    def close(self) -> None:
        """Nothing to release."""
