"""Says what bounds a job: its GPUs' compute, their memory, links, or the host, each in percent of the peak.

Compute and memory are the two lines of the roofline model: below the ridge a kernel needs more bytes than operations.
Rows are means over minutes in which a kernel ran. A bound whose readings are missing is named and does not count. Except
for the SQL, all is pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.job_readings import MINUTES_UP_TO
from gpuwarden.models import SIMULATED, GpuModel, tensor_rate
from gpuwarden.query import Querier, query_all
from gpuwarden.rollups import IDLE_BELOW_PERCENT

BOUND_FROM = 50.0
"""Percent of the peak from which it is the bound; good kernels reach 80 to 90."""
HOST_FROM = 30.0
"""Percent of the time without a kernel from which the host is the bound."""
PORTS_OVER = timedelta(hours=3)
"""How far back ports of the network are read."""
LANE_BYTES: Mapping[int, float] = {
    1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9,
}  # fmt: skip
"""Bytes a second of a PCIe lane, each way, by generation."""
LINK_BYTES: Mapping[str, float] = {
    "P100": 20e9, "V100": 25e9, "A100": 25e9, "H100": 25e9, "H200": 25e9, "GH200": 25e9, "B200": 50e9, "B300": 50e9,
    "GB200": 50e9,
}  # fmt: skip
"""Bytes a second of an NVLink, each way, by the start of the model's name; NVIDIA's data sheets."""
PIPES: Mapping[str, str] = {
    "tensor": "tensor cores", "fp16": "FP16", "fp32": "FP32", "fp64": "FP64", "integer": "integers",
}  # fmt: skip
DCGM = "GPUs before Hopper tell these by DCGM alone (docs/receive.md)"


@dataclass(frozen=True, slots=True)
class RoofReading:
    """Means over the GPUs of a job, of one model; None: not read."""

    model: str | None
    gpus: int
    minutes: int
    """GPU minutes with readings."""
    util_percent: float | None = None
    """Of all minutes; the others are of minutes in which a kernel ran."""
    sm_active_percent: float | None = None
    tensor_percent: float | None = None
    tensor_percent_mhz: float | None = None
    """`tensor_half_active_percent` times `sm_clock_mhz`."""
    fp16_percent: float | None = None
    fp32_percent: float | None = None
    fp64_percent: float | None = None
    integer_percent: float | None = None
    dram_percent: float | None = None
    nvlink_bytes_per_second: float | None = None
    """The greater of both ways."""
    pcie_bytes_per_second: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class HostMeanwhile:
    """What the host did meanwhile; None: not read."""

    main_cpu_percent: float | None = None
    """Of a core."""
    loader_blocked_percent: float | None = None
    iowait_percent: float | None = None
    port_percent: float | None = None
    """Received over InfiniBand or RoCE, of the rate of the busiest port of its nodes."""


@dataclass(frozen=True, slots=True)
class Roof:
    """One thing that can bound a job."""

    name: str
    """compute, memory, link or host."""
    percent: float | None
    """Of the peak; None: not known."""
    words: str


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """Place in the roofline model."""

    tflops: float
    """At most: tensor cores do no more while they are active."""
    bytes_per_second: float
    peak_tflops: float
    peak_bytes_per_second: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.tflops * 1e12 / self.bytes_per_second

    @property
    def ridge(self) -> float:
        """Operations a byte from which compute is the lower roof."""
        return self.peak_tflops * 1e12 / self.peak_bytes_per_second

    @property
    def roof_tflops(self) -> float:
        """The roof above it."""
        return min(self.peak_tflops, self.intensity * self.peak_bytes_per_second / 1e12)

    def place(self, intensity: float, tflops: float) -> tuple[float, float]:
        """Place of a point in a picture of 100 x 60 with logarithmic axes: four decades around the ridge, three of
        TFLOPS."""
        x = 50 + 25 * math.log10(max(intensity, 1e-9) / self.ridge)
        y = 4 - 56 / 3 * math.log10(max(tflops, 1e-9) / self.peak_tflops)
        return min(98.0, max(2.0, x)), min(58.0, max(2.0, y))


@dataclass(frozen=True, slots=True)
class Roofline:
    """What bounds a job on GPUs of one model."""

    reading: RoofReading
    bound: str
    """compute, memory, link, host, none, or unknown."""
    sentence: str
    roofs: Sequence[Roof]
    point: RoofPoint | None
    """None: tensor or memory activity was not read, or is nothing."""


def roofline(reading: RoofReading, host: HostMeanwhile) -> Roofline:
    """What bounds it, with all numbers."""
    model = _model(reading.model)
    roofs = [
        _compute(reading),
        _memory(reading, model),
        _link(reading, host, model),
        _host(reading, host),
    ]
    bound, sentence = _verdict(reading, roofs)
    return Roofline(reading, bound, sentence, roofs, _point(reading, model))


def _model(name: str | None) -> GpuModel | None:
    return next((model for model in SIMULATED if model.name == name), None)


def _compute(reading: RoofReading) -> Roof:
    pipes = {words: getattr(reading, f"{pipe}_percent") for pipe, words in PIPES.items()}
    known = {words: value for words, value in pipes.items() if value is not None}
    if not known:
        return Roof("compute", None, f"not known: no activity of pipes was read; {DCGM}")
    most = max(known, key=lambda words: known[words])
    said = ", ".join(f"{words} {value:.0f} %" for words, value in known.items())
    sm = (
        ""
        if reading.sm_active_percent is None
        else f"; SMs had work {reading.sm_active_percent:.0f} %"
    )
    return Roof("compute", known[most], f"active time: {said}{sm}")


def _memory(reading: RoofReading, model: GpuModel | None) -> Roof:
    if reading.dram_percent is None:
        return Roof("memory", None, f"not known: dram_active_percent was not read; {DCGM}")
    said = f"device memory used {reading.dram_percent:.0f} % of its bandwidth"
    if model is not None:
        said += f", {reading.dram_percent / 100 * model.bandwidth_gb_s:,.0f} of {model.bandwidth_gb_s:,} GB/s"
    return Roof("memory", reading.dram_percent, said)


def _link(reading: RoofReading, host: HostMeanwhile, model: GpuModel | None) -> Roof:
    known: dict[str, float] = {}
    said = []
    nvlink = _nvlink_peak(model)
    if reading.nvlink_bytes_per_second is not None and nvlink:
        known["NVLink"] = 100 * reading.nvlink_bytes_per_second / nvlink
        said.append(
            f"NVLink {reading.nvlink_bytes_per_second / 1e9:,.1f} of {nvlink / 1e9:,.0f} GB/s"
        )
    lane = LANE_BYTES.get(reading.pcie_generation or 0)
    if reading.pcie_bytes_per_second is not None and lane and reading.pcie_width:
        peak = lane * reading.pcie_width
        known["PCIe"] = 100 * reading.pcie_bytes_per_second / peak
        said.append(f"PCIe {reading.pcie_bytes_per_second / 1e9:,.1f} of {peak / 1e9:,.0f} GB/s")
    if host.port_percent is not None:
        known["InfiniBand or RoCE"] = host.port_percent
        said.append(f"the busiest InfiniBand or RoCE port {host.port_percent:.0f} % of its rate")
    if not known:
        return Roof(
            "link",
            None,
            "not known: no traffic of NVLink, PCIe or InfiniBand was read, or its peak is not known",
        )
    return Roof("link", max(known.values()), ", ".join(said))


def _nvlink_peak(model: GpuModel | None) -> float | None:
    if model is None or not model.nvlinks:
        return None
    per_link = next(
        (usd for start, usd in LINK_BYTES.items() if model.name.startswith(start)), None
    )
    return None if per_link is None else per_link * model.nvlinks


def _host(reading: RoofReading, host: HostMeanwhile) -> Roof:
    if reading.util_percent is None:
        return Roof("host", None, "not known: util_percent was not read")
    idle = 100 - reading.util_percent
    said = [f"no kernel ran {idle:.0f} % of the time"]
    if host.main_cpu_percent is not None:
        said.append(f"main thread {host.main_cpu_percent:.0f} % of a core")
    if host.loader_blocked_percent is not None:
        said.append(f"data-loader workers blocked on storage {host.loader_blocked_percent:.0f} %")
    if host.iowait_percent is not None:
        said.append(f"CPUs of its nodes waited for I/O {host.iowait_percent:.0f} %")
    return Roof("host", idle, ", ".join(said))


_BOUNDS = {
    "compute": "Compute is the bound, as it should be: {percent:.0f} % of the time its busiest pipe was active.",
    "memory": "Device memory is the bound: {percent:.0f} % of its bandwidth was used. Larger batches, fused kernels or smaller "
    "number formats need fewer bytes.",
    "link": "The links are the bound: {percent:.0f} % of their peak. Exchange less, later, or while kernels compute.",
}


def _verdict(reading: RoofReading, roofs: Sequence[Roof]) -> tuple[str, str]:
    *of_gpu, host = roofs
    if host.percent is not None and host.percent >= HOST_FROM:
        return "host", f"The host is the bound: no kernel ran {host.percent:.0f} % of the time."
    unknown = [roof.name for roof in of_gpu if roof.percent is None]
    known = [roof for roof in of_gpu if roof.percent is not None]
    if host.percent is None or "compute" in unknown or "memory" in unknown:
        names = ", ".join([*unknown, *(["host"] if host.percent is None else [])])
        return "unknown", f"What bounds it is not known: readings are missing of {names}."
    highest = max(known, key=lambda roof: roof.percent or 0.0)
    assert highest.percent is not None
    if highest.percent >= BOUND_FROM:
        return highest.name, _BOUNDS[highest.name].format(percent=highest.percent)
    sm = reading.sm_active_percent
    why = (
        f"SMs had work {sm:.0f} % of the time: steps are too small to fill the GPU."
        if sm is not None and sm < BOUND_FROM
        else "kernels wait for latency: of memory, of each other, or of launches."
    )
    return "none", f"No peak is reached ({highest.name} is highest, {highest.percent:.0f} %): {why}"


def _point(reading: RoofReading, model: GpuModel | None) -> RoofPoint | None:
    if model is None or not reading.tensor_percent or not reading.dram_percent:
        return None
    rate = tensor_rate(model.name, reading.tensor_percent_mhz)
    tflops = (
        rate.tflops_at_most if rate is not None else reading.tensor_percent / 100 * model.tflops
    )
    peak = model.bandwidth_gb_s * 1e9
    bytes_per_second = reading.dram_percent / 100 * peak
    # Below a byte a second there is no place in the picture, and the division overflows.
    if tflops <= 0 or bytes_per_second < 1:
        return None
    return RoofPoint(tflops, bytes_per_second, model.tflops, peak)


_PIPES_SQL = ", ".join(
    f"avg({pipe}_active_percent_avg) {{working}} AS {pipe}_percent"
    for pipe in ("tensor", "fp16", "fp32", "fp64", "integer")
)
_GPUS_SQL = """
SELECT i.catalogue_model AS model, count(DISTINCT g.gpu_uuid) AS gpus, count(*) AS minutes, avg(util_percent_avg) AS util_percent,
    avg(sm_active_percent_avg) {working} AS sm_active_percent, {pipes},
    avg(tensor_half_active_percent_avg * sm_clock_mhz_avg) {working} AS tensor_percent_mhz,
    avg(dram_active_percent_avg) {working} AS dram_percent,
    avg(greatest(nvlink_rx_bytes_per_second_avg, nvlink_tx_bytes_per_second_avg)) {working} AS nvlink_bytes_per_second,
    avg(greatest(pcie_rx_bytes_per_second_avg, pcie_tx_bytes_per_second_avg)) {working} AS pcie_bytes_per_second,
    min(i.pcie_generation_max) AS pcie_generation, min(i.pcie_width_max) AS pcie_width
FROM {table} g LEFT JOIN gpus i ON i.gpu_uuid = g.gpu_uuid
WHERE g.ts >= $begin::TIMESTAMP AND g.ts < $end::TIMESTAMP AND g.gpu_uuid IN (SELECT unnest($gpus))
GROUP BY i.catalogue_model ORDER BY minutes DESC, model
"""
_HOST_SQL = """
SELECT (SELECT avg(main_cpu_percent_avg) FROM process_1m WHERE {when} AND job = $job) AS main_cpu_percent,
    (SELECT avg(loader_blocked_percent_avg) FROM process_1m WHERE {when} AND job = $job) AS loader_blocked_percent,
    (SELECT avg(cpu_iowait_percent_avg) FROM host_1m WHERE {when} AND node IN (SELECT unnest($nodes))) AS iowait_percent,
    (SELECT max(percent) FROM (
        SELECT 800 * (max(rx_bytes_total) - min(rx_bytes_total)) / nullif(epoch(max(ts) - min(ts)), 0) / any_value(rate_bits_per_second)
            AS percent
        FROM infiniband_samples WHERE {ports} AND node IN (SELECT unnest($nodes)) AND rate_bits_per_second > 0
        GROUP BY node, device, port HAVING max(rx_bytes_total) > min(rx_bytes_total)
    )) AS port_percent
"""


async def read_rooflines(
    querier: Querier,
    job: str,
    gpus: Sequence[str],
    nodes: Sequence[str],
    begin: datetime,
    end: datetime,
) -> Sequence[Roofline]:
    """What bounds a job, by model of its GPUs, those with most time first. Raises QueryError."""
    if not gpus or begin >= end:
        return ()
    table = "gpu_1h" if end - begin > MINUTES_UP_TO else "gpu_1m"
    working = f"FILTER (util_percent_avg >= {IDLE_BELOW_PERCENT:g})"
    gpus_sql = _GPUS_SQL.format(
        table=table, working=working, pipes=_PIPES_SQL.format(working=working)
    )
    first, last = _whole_minutes(begin, end)
    time = {"begin": first, "end": last}
    # Minutes of the host and the processes: of a long job its last days.
    late = {
        "begin": max(begin, end - MINUTES_UP_TO),
        "end": end,
        "ports": max(begin, end - PORTS_OVER),
    }
    when = "ts >= $begin::TIMESTAMP AND ts < $end::TIMESTAMP"
    host_sql = _HOST_SQL.format(when=when, ports=when.replace("$begin", "$ports"))
    found, host = await query_all(
        querier,
        [
            (gpus_sql, {**time, "gpus": list(gpus)}),
            (host_sql, {**late, "nodes": list(nodes), "job": job}),
        ],
    )
    (meanwhile,) = host.records()
    return [roofline(RoofReading(**row), HostMeanwhile(**meanwhile)) for row in found.records()]


def _whole_minutes(begin: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The whole minutes of a time: at its edges the GPU did something else for a part of the minute. Without a whole
    one: the time."""
    minute = timedelta(minutes=1)
    first = begin.replace(second=0, microsecond=0)
    first += minute if first < begin else timedelta(0)
    last = end.replace(second=0, microsecond=0)
    return (first, last) if first < last else (begin, end)


def roofline_record(one: Roofline) -> Mapping[str, Any]:
    """For JSON."""
    return {
        "model": one.reading.model, "bound": one.bound, "sentence": one.sentence,
        "roofs": [{"name": roof.name, "percent": roof.percent, "words": roof.words} for roof in one.roofs],
        "tflops_at_most": one.point.tflops if one.point else None,
        "operations_a_byte": one.point.intensity if one.point else None,
    }  # fmt: skip
