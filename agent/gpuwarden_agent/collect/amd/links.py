"""Makes rows of `link_samples` for xGMI links (Infinity Fabric between GPUs), from the metrics.

The firmware counts bytes link by link from MI300 on. Drivers with metrics of version 1.7 and newer
say of each link whether it is up. Older ones have a number for each of eight links, used or not:
there, and where the state is not to be had, a link is a row once it carried something.

What a link leads to is not told: the numbers of the metrics and those of `xgmi_port_num` are the
same in some drivers only. `xgmi_error` is never read, because reading clears it.
"""

from gpuwarden_agent.collect.amd.gpu_metrics import XGMI_LINKS, Metrics, number, numbers
from gpuwarden_agent.probe import Row

KIB = 1024
GIGABIT_BYTES = 1e9 / 8
IS_ACTIVE = {0: False, 1: True}
"""enum amdgpu_xgmi_link_status; 2: not to be had."""


def xgmi_rows(metrics: Metrics) -> list[Row]:
    """A row for each link, without identity."""
    read = _padded(metrics, "xgmi_read_data_acc")
    written = _padded(metrics, "xgmi_write_data_acc")
    states = _padded(metrics, "xgmi_link_status")
    rows: list[Row] = []
    for link in range(XGMI_LINKS):
        state = states[link]
        is_active = None if state is None else IS_ACTIVE.get(state)
        if is_active is None and not (read[link] or written[link]):
            continue
        row: Row = {
            "link_type": "xgmi",
            "link": link,
            "remote_type": "gpu",
            "active": is_active,
            "speed_bytes_per_second": _speed(metrics),
            "tx_bytes_total": _bytes(written[link]),
            "rx_bytes_total": _bytes(read[link]),
        }
        rows.append(row)
    return rows


def _speed(metrics: Metrics) -> float | None:
    """Lanes times Gbit/s of each, one way."""
    width, gigabits = number(metrics, "xgmi_link_width"), number(metrics, "xgmi_link_speed")
    return width * gigabits * GIGABIT_BYTES if width and gigabits else None


def _padded(metrics: Metrics, name: str) -> list[int | None]:
    values = list(numbers(metrics, name))[:XGMI_LINKS]
    return values + [None] * (XGMI_LINKS - len(values))


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib * KIB
