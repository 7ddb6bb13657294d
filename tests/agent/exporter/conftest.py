import json
from typing import Any

import pytest

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.metrics import METRICS, Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.exporter.latest import Latest

UUID = "GPU-1b0a"


class Node:
    """Rows of one GPU node, stamped with the clock's time as the sampler does it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.latest = Latest(clock)
        facts = {"node": "n1", "driver_version": "570.1", "agent_id": "a", "boot_id": "b"}
        self.latest.take("nodes", [facts])

    def inventory(self, **columns: Any) -> None:
        row = {
            "gpu_uuid": UUID,
            "node": "n1",
            "gpu": 3,
            "model": "NVIDIA H100",
            "vendor": "nvidia",
            "pci_bus_id": "0000:1b:00.0",
        }
        self.latest.take("gpus", [row | columns])

    def gpu(self, **columns: Any) -> None:
        self._take("gpu_samples", {"gpu": 3, "gpu_uuid": UUID} | columns)

    def given(self, owner: str, **columns: Any) -> None:
        self._take(
            "allocation_samples",
            {"gpu": 3, "gpu_uuid": UUID, "scheduler": "slurm", "job": owner} | columns,
        )

    def detail(self, **columns: Any) -> None:
        self._take("gpu_detail_samples", {"gpu": 3, "gpu_uuid": UUID} | columns)

    def health(self, **columns: Any) -> None:
        self._take("gpu_health_samples", {"gpu": 3, "gpu_uuid": UUID} | columns)

    def link(self, link: int, **columns: Any) -> None:
        identity = {"gpu": 3, "gpu_uuid": UUID, "link_type": "nvlink", "link": link}
        self._take("link_samples", identity | columns)

    def port(self, device: str, **columns: Any) -> None:
        self._take("infiniband_samples", {"device": device, "port": 1} | columns)

    def xid(self, code: int, **columns: Any) -> None:
        row = {"kind": "xid", "gpu": 3, "gpu_uuid": UUID, "details": json.dumps({"xid": code})}
        self._take("events", row | columns)

    def host(self, **columns: Any) -> None:
        self._take("host_samples", columns)

    def process(self, pid: int, **columns: Any) -> None:
        self._take("process_samples", {"gpu": 3, "gpu_uuid": UUID, "pid": pid} | columns)

    def everything(self) -> None:
        """A row of each table with a value in each column."""
        self.inventory()
        identity = {"gpu": 3, "gpu_uuid": UUID, "link_type": "c2c", "link": 0, "pid": 7}
        identity |= {"device": "mlx5_0", "port": 1, "link_layer": "InfiniBand"}
        for table, metrics in METRICS.items():
            columns = set(WIRE_TABLES[table].names)
            values = {m.name: True if m.type is Type.BOOL else 1 for m in metrics}
            own = {name: value for name, value in identity.items() if name in columns}
            self._take(table, own | values)

    def _take(self, table: str, columns: dict[str, Any]) -> None:
        stamp = {"ts": to_ms(self.clock.now()), "node": "n1", "simulated": False}
        self.latest.take(table, [stamp | columns])


@pytest.fixture
def node(manual_clock: ManualClock) -> Node:
    """A node whose rows the test gives, one call a row."""
    return Node(manual_clock)
