"""Reads MIG devices: instances of a GPU, each with rows of its own.

They come and go while the agent runs. They are listed at every description, and again as soon as one
does not answer. A MIG device has its own memory, and with GPM (Hopper and newer) its own activity;
power, temperature, clocks and errors are those of the whole GPU.
"""

from collections import Counter

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpm import GpmReader
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import MemoryInfo, MigDevice, NvmlError
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import Row, Value

_NONE_THERE = frozenset({nvml.NOT_FOUND, nvml.INVALID_ARGUMENT})
"""Return codes for an index without a MIG device."""

PARTS_MAX = 64
"""A larger number of MIG devices is not valid; an H100 can have seven."""


class MigReader:
    """Reads the MIG devices of one GPU."""

    def __init__(self, query: Query, clock: Clock) -> None:
        self._device = query.device
        self._query = query
        self._clock = clock
        self._parts: dict[str, MigDevice] = {}
        self._gpm: dict[str, GpmReader] = {}
        self._is_stale = True

    def learn(self, is_mig: bool) -> None:
        """List the MIG devices; `is_mig`: MIG mode is on."""
        count = (self._query.ask(ROWS["mig_devices_max"]) or 0) if is_mig else 0
        indices = range(min(count, PARTS_MAX))
        found = (self._query.ask_as(("mig_device", n), self._find, n) for n in indices)
        self._parts = {part.uuid: part for part in found if part is not None}
        for gone in self._gpm.keys() - self._parts.keys():
            self._gpm.pop(gone).close()
        self._is_stale = False

    def samples(self) -> list[Row]:
        """Rows of `gpu_samples`."""
        if self._is_stale:
            self.learn(is_mig=True)
        rows = []
        for part in self._parts.values():
            memory = self._memory(part)
            if memory is not None:
                values: dict[str, Value] = {
                    "memory_total_bytes": memory.total_bytes,
                    "memory_used_bytes": memory.used_bytes,
                    "memory_free_bytes": memory.free_bytes,
                    "memory_reserved_bytes": memory.reserved_bytes,
                }
                rows.append(self._identity(part) | coerce("gpu_samples", values))
        return rows

    def details(self) -> list[Row]:
        """Rows of `gpu_detail_samples`. GPM measures GPU instances, so compute instances that share one
        have no rows.
        """
        sharing = Counter(part.gpu_instance for part in self._parts.values())
        rows = []
        for part in self._parts.values():
            if sharing[part.gpu_instance] > 1:
                continue
            values = self._reader(part).read()
            if row := coerce("gpu_detail_samples", values):
                rows.append(self._identity(part) | row)
        return rows

    def inventory(self) -> list[Row]:
        """Rows of `gpus`."""
        rows = []
        for part in self._parts.values():
            memory = self._memory(part)
            values: dict[str, Value] = {
                "model": self._query.ask_as(("mig_name", part.uuid), part.name),
                "vendor": "nvidia",
                "kind": "gpu",
                "memory_total_bytes": memory.total_bytes if memory else None,
                "parent_gpu_uuid": self._device.uuid,
            }
            rows.append(self._identity(part) | coerce("gpus", values))
        return rows

    def forget(self) -> None:
        """The GPU is opened again, or closed: drop its handles and samples."""
        for reader in self._gpm.values():
            reader.close()
        self._gpm.clear()
        self._parts.clear()
        self._is_stale = True

    def _find(self, index: int) -> MigDevice | None:
        try:
            return self._device.mig_device(index)
        except NvmlError as error:
            if error.code in _NONE_THERE:
                return None
            raise

    def _identity(self, part: MigDevice) -> Row:
        return {
            "gpu": self._device.index,
            "gpu_uuid": part.uuid,
            "mig_instance": f"{part.gpu_instance}/{part.compute_instance}",
        }

    def _memory(self, part: MigDevice) -> MemoryInfo | None:
        def memory() -> MemoryInfo:
            try:
                return part.memory_v2()
            except NvmlError as error:
                # It was probably destroyed. The code says nothing about the whole GPU; the next
                # list of MIG devices does.
                self._is_stale = True
                raise NvmlError(nvml.NOT_FOUND, error.call) from error

        return self._query.ask_as(("mig_memory", part.uuid), memory)

    def _reader(self, part: MigDevice) -> GpmReader:
        reader = self._gpm.get(part.uuid)
        if reader is None:
            reader = GpmReader(self._query, self._clock, part.gpu_instance)
            self._gpm[part.uuid] = reader
        return reader
