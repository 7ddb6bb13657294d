"""Makes the ten-second and minute rows of a node: activity, health, links, ports.

It is separate from the one-second rows, which it must not slow down. Its state is only what two
readings are compared by.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

from gpuwarden.models import GpuModel
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices import gpu_detail, gpu_health, links
from gpuwarden_simulator.devices.gpu import GpuLoad, GpuState
from gpuwarden_simulator.devices.gpu_detail import Mark
from gpuwarden_simulator.devices.hardware import SimulatedGpu
from gpuwarden_simulator.devices.links import Port
from gpuwarden_simulator.faults.effects import Effects

BEFORE_S = -1e12
"""A driver that was loaded before the simulation began."""


class SlowTables:
    """The slow tables of one node. Instants of effects are milliseconds since the first tick."""

    def __init__(
        self,
        model: GpuModel,
        devices: Sequence[SimulatedGpu],
        identity: str,
        effects: Effects,
        *,
        host: bool,
    ) -> None:
        """`host`: also simulate the node's InfiniBand."""
        self._devices = list(devices)
        self._identity = identity
        self._effects = effects
        self._usual = [gpu_detail.template(device) for device in devices]
        self._replays = [gpu_detail.usual_replays(device, identity) for device in devices]
        self._memories = [gpu_health.make_memory(device, identity) for device in devices]
        self._link_templates = [links.link_templates(device, devices) for device in devices]
        self._carried = [links.no_bytes(model) for _ in devices]
        self._adapters = links.adapters_of(model, len(devices))
        self._marks: dict[int, Mark] = {}
        self._ports: list[Port] = []
        self._ports_at_ms = 0
        self._rng = random.Random(f"ports/{identity}")
        tables = {"gpu_detail_samples": 10, "gpu_health_samples": 60}
        if any(self._link_templates):
            tables["link_samples"] = 10
        if self._adapters.count and host:
            tables["infiniband_samples"] = 10
        self.tables: Mapping[str, int] = tables

    def begin(self, states: Mapping[int, GpuState], at_ms: int) -> None:
        """Set the counters to compare the first reading with."""
        self._marks = {gpu: gpu_detail.mark(at_ms, state) for gpu, state in states.items()}

    def boot(self, states: Mapping[int, GpuState], at_ms: int, *, is_first: bool) -> None:
        """Reset the ports after a boot; at the first reading the node has been up for days."""
        self._ports_at_ms = at_ms
        self._ports = []
        for number in range(self._adapters.count):
            carried = int(self._rng.uniform(1e12, 4e14)) if is_first else 0
            seen = states[self._gpu_beside(number)].nvlink_tx_bytes
            self._ports.append(Port(carried, seen))

    def replaced(self, gpu: int, device: SimulatedGpu) -> None:
        """Put another board in the place of a GPU."""
        self._devices[gpu] = device
        self._usual[gpu] = gpu_detail.template(device)
        self._memories[gpu] = gpu_health.make_new_memory(device, f"{self._identity}/{device.uuid}")
        self._link_templates[gpu] = links.link_templates(device, self._devices)

    def loaded(self, gpu: int, state: GpuState, at_ms: int) -> None:
        """The driver was loaded again for a GPU."""
        self._marks[gpu] = gpu_detail.mark(at_ms, state)

    def detail_rows(
        self,
        gpus: Iterable[int],
        states: Mapping[int, GpuState],
        loads: Mapping[int, GpuLoad],
        ts_ms: int,
        at_ms: int,
    ) -> list[Row]:
        """Rows of gpu_detail_samples. `at_ms`: the same instant as `ts_ms`."""
        rows, effects, is_quiet = [], self._effects, not self._effects.faults
        for gpu in gpus:
            state = states[gpu]
            before, self._marks[gpu] = self._marks.get(gpu), gpu_detail.mark(ts_ms, state)
            if is_quiet:
                replays, pcie, down = self._replays[gpu], gpu_detail.WELL, 0
            else:
                replays = 0 if effects.loaded_ms(gpu, at_ms) is not None else self._replays[gpu]
                pcie = effects.pcie(gpu, at_ms)
                down = sum(trouble.is_down for trouble in effects.links(gpu, at_ms).values())
            row = gpu_detail.detail_row(
                self._usual[gpu],
                self._devices[gpu],
                state,
                loads[gpu],
                before,
                ts_ms,
                replays=replays,
                pcie=pcie,
                links_down=down,
            )
            if not is_quiet and (stuck := effects.fan_percent(gpu, at_ms)) is not None:
                row["fan_percent"] = float(stuck)
            rows.append(row)
        return rows

    def health_rows(self, gpus: Iterable[int], at_ms: int) -> list[Row]:
        """Rows of gpu_health_samples."""
        rows = []
        for gpu in gpus:
            new_s = self._effects.new_ms(gpu, at_ms) / 1000
            loaded_ms = self._effects.loaded_ms(gpu, at_ms)
            loaded_s = BEFORE_S if loaded_ms is None else loaded_ms / 1000 - new_s
            trouble = self._effects.health(gpu, at_ms)
            elapsed_s = at_ms / 1000 - new_s
            rows.append(gpu_health.health_row(self._memories[gpu], elapsed_s, loaded_s, trouble))
        return rows

    def link_rows(
        self, gpus: Iterable[int], states: Mapping[int, GpuState], at_ms: int
    ) -> list[Row]:
        """Rows of link_samples."""
        rows: list[Row] = []
        for gpu in gpus:
            troubles, state = self._effects.links(gpu, at_ms), states[gpu]
            carried = self._carried[gpu]
            carried.share(state.nvlink_tx_bytes, state.nvlink_rx_bytes, troubles)
            rows += links.link_rows(self._link_templates[gpu], carried, troubles)
        return rows

    def port_rows(self, states: Mapping[int, GpuState], ts_ms: int, at_ms: int) -> list[Row]:
        """Rows of infiniband_samples. `at_ms`: the same instant as `ts_ms`."""
        troubles = self._effects.ports(at_ms)
        dt, self._ports_at_ms = (ts_ms - self._ports_at_ms) / 1000, ts_ms
        rows = []
        for number, port in enumerate(self._ports):
            trouble = troubles.get(number)
            links.carry(port, states[self._gpu_beside(number)].nvlink_tx_bytes, dt, trouble)
            rows.append(links.port_row(self._adapters, number, port, trouble))
        return rows

    def _gpu_beside(self, number: int) -> int:
        return number * len(self._devices) // self._adapters.count
