"""Defines GPU models: values that a device does not report, above all its price.

The device reports power limits, temperatures, PCIe, NVLink count and memory. This table adds bandwidth, dense
FP16/BF16 TFLOPS and price, and values with which the simulator imitates a model.

Sources: memory, bandwidth, TFLOPS, TDP and links from NVIDIA's and AMD's data sheets. Idle power,
clocks and SXM limits as observed in nvidia-smi dumps of that model where one exists. Prices are
on-demand USD per GPU-hour, of the provider named, taken in mid-2026 from the SkyPilot catalogue
and gpuhunt; older parts from AWS's, GCP's and Azure's list prices divided by GPUs. They are
defaults, which an operator should replace (docs/money.md).
"""

import re
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Price:
    """On-demand price of one GPU per hour, its provider, and when it was read."""

    usd_per_hour: float
    provider: str
    read_on: str


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of the catalogue."""

    name: str
    pattern: str
    """Regular expression that the driver's name for the model matches; first match wins."""
    memory_gib: int
    bandwidth_gb_s: int
    tflops: float
    tdp_watts: int
    idle_watts: int
    sm_clock_max_mhz: int
    memory_clock_mhz: int
    nvlinks: int
    price: Price | None

    @property
    def driver_name(self) -> str:
        """A name such as the driver reports, for the simulator."""
        vendor = "AMD Instinct" if self.name.startswith("MI") else "NVIDIA"
        return f"{vendor} {self.name}"


def _price(usd: float, provider: str, read_on: str = "2026-06") -> Price:
    return Price(usd, provider, read_on)


# fmt: off
MODELS: tuple[GpuModel, ...] = (
    # name, pattern, GiB, GB/s, TFLOPS, TDP, idle W, SM MHz, memory MHz, NVLinks, price
    GpuModel("GB200", r"\bGB200\b", 186, 8000, 2500, 1200, 140, 2062, 3996, 18, None),
    GpuModel("B300-SXM-288GB", r"\bB300\b", 288, 8000, 2250, 1100, 140, 2032, 3996, 18, None),
    GpuModel("B200-SXM-180GB", r"\bB200\b", 180, 8000, 2250, 1000, 140, 1965, 3996, 18, _price(5.50, "nebius")),
    GpuModel("GH200-96GB", r"\bGH200\b", 96, 4000, 989, 700, 90, 1980, 2619, 18, _price(2.29, "lambda")),
    GpuModel("H200-SXM-141GB", r"\bH200\b", 141, 4800, 989, 700, 78, 1980, 3201, 18, _price(3.50, "nebius")),
    GpuModel("H100-NVL", r"\bH100\b.*\bNVL\b", 94, 3938, 835, 400, 60, 1785, 2619, 12, None),
    GpuModel("H100-PCIe-80GB", r"\bH100\b.*PCIe", 80, 2039, 756, 350, 50, 1755, 1593, 12, None),
    GpuModel("H100-SXM-80GB", r"\bH100\b", 80, 3352, 989, 700, 70, 1980, 2619, 18, _price(2.95, "nebius")),
    GpuModel("A100-PCIe-40GB", r"\bA100\b.*PCI.*40GB", 40, 1555, 312, 250, 35, 1410, 1215, 12, _price(1.45, "crusoe")),
    GpuModel("A100-PCIe-80GB", r"\bA100\b.*PCI", 80, 1935, 312, 300, 45, 1410, 1512, 12, _price(1.65, "crusoe")),
    GpuModel("A100-SXM-40GB", r"\bA100\b.*40GB", 40, 1555, 312, 400, 60, 1410, 1215, 12, _price(3.67, "gcp", "2026")),
    GpuModel("A100-SXM-80GB", r"\bA100\b", 80, 2039, 312, 400, 62, 1410, 1593, 12, _price(1.95, "crusoe")),
    GpuModel("A40-48GB", r"\bA40\b", 48, 696, 150, 300, 30, 1740, 7251, 4, _price(0.90, "crusoe")),
    GpuModel("A10G-24GB", r"\bA10G\b", 24, 600, 70, 300, 22, 1710, 6251, 0, None),
    GpuModel("A10-24GB", r"\bA10\b", 24, 600, 125, 150, 20, 1695, 6251, 0, None),
    GpuModel("L40S-48GB", r"\bL40S\b", 48, 864, 362, 350, 35, 2520, 9001, 0, _price(1.55, "nebius")),
    GpuModel("L4-24GB", r"\bL4\b", 24, 300, 121, 72, 12, 2040, 6251, 0, None),
    GpuModel("RTX-PRO-6000-96GB", r"RTX[ -]PRO[ -]6000", 96, 1597, 500, 600, 30, 2430, 14001, 0, None),
    GpuModel("RTX-6000-Ada-48GB", r"RTX[ -]6000[ -]Ada", 48, 960, 364, 300, 20, 3105, 10001, 0, None),
    GpuModel("RTX-A6000-48GB", r"RTX[ -]A6000", 48, 768, 155, 300, 22, 2100, 8001, 4, _price(1.09, "lambda")),
    GpuModel("RTX-5090", r"RTX[ -]5090", 32, 1792, 210, 575, 25, 3090, 14001, 0, None),
    GpuModel("RTX-4090", r"RTX[ -]4090", 24, 1008, 165, 450, 27, 3120, 10501, 0, None),
    GpuModel("RTX-3090", r"RTX[ -]3090", 24, 936, 71, 350, 25, 2100, 9751, 4, None),
    GpuModel("RTX-2080-Ti", r"RTX[ -]2080[ -]Ti", 11, 616, 107, 250, 20, 2100, 7000, 2, None),
    GpuModel("V100-SXM-32GB", r"\bV100\b.*32GB", 32, 900, 125, 300, 40, 1530, 877, 6, None),
    GpuModel("V100-SXM-16GB", r"\bV100\b", 16, 900, 125, 300, 40, 1530, 877, 6, _price(0.79, "lambda")),
    GpuModel("T4-16GB", r"\bT4\b", 16, 320, 65, 70, 10, 1590, 5001, 0, _price(1.09, "azure", "2026")),
    GpuModel("P100-16GB", r"\bP100\b", 16, 720, 18.7, 300, 26, 1328, 715, 4, None),
    GpuModel("MI355X-288GB", r"\bMI355X?\b", 288, 8000, 2517, 1400, 150, 2400, 2000, 7, None),
    GpuModel("MI325X-256GB", r"\bMI325X?\b", 256, 6000, 1307, 1000, 140, 2100, 1500, 7, None),
    GpuModel("MI300X-192GB", r"\bMI300X?\b", 192, 5300, 1307, 750, 140, 2100, 1300, 7, _price(3.45, "crusoe")),
    GpuModel("MI250X-128GB", r"\bMI250X?\b", 128, 3277, 383, 560, 90, 1700, 1600, 8, None),
    GpuModel("MI100-32GB", r"\bMI100\b", 32, 1229, 185, 300, 40, 1502, 1200, 3, None),
)
# fmt: on

_PATTERNS = tuple((re.compile(model.pattern), model) for model in MODELS)


_MIG_DEVICE = re.compile(r"\bMIG\b")


_CLOCKS_OF_PEAK_MHZ = {
    "GH200-96GB": 1830,
    "H200-SXM-141GB": 1830,
    "H100-SXM-80GB": 1830,
    "H100-NVL": 1545,
    "H100-PCIe-80GB": 1620,
}
"""The SM clock at which a model has the TFLOPS of its data sheet: these over 4,096 operations a cycle of each of its
132 SMs (H100 PCIe: 114), by NVIDIA's Hopper whitepaper.
"""


@dataclass(frozen=True, slots=True)
class TensorRate:
    """Operations of tensor cores in FP16 or BF16, dense, on one GPU."""

    tflops_at_most: float
    """While tensor cores were active they did no more. A matrix product did 88 % of it on an H200."""
    tflops_of_data_sheet: float

    @property
    def percent(self) -> float:
        """The first in percent of the second."""
        return 100 * self.tflops_at_most / self.tflops_of_data_sheet


def tensor_rate(model: str | None, active_percent_mhz: float | None) -> TensorRate | None:
    """The rate of a catalogue's model. `active_percent_mhz`: mean of `tensor_half_active_percent` times
    `sm_clock_mhz`. None: not read, or the model's clock is not known.
    """
    clock_mhz = _CLOCKS_OF_PEAK_MHZ.get(model or "")
    if clock_mhz is None or active_percent_mhz is None:
        return None
    peak = model_named(str(model)).tflops
    return TensorRate(peak * active_percent_mhz / 100 / clock_mhz, peak)


def find_model(driver_name: str) -> GpuModel | None:
    """The model for a driver's name such as "NVIDIA H100 80GB HBM3"; None: unknown.

    A MIG device ("NVIDIA H100 80GB HBM3 MIG 1g.10gb") has no model: power and price are those of a whole
    GPU.
    """
    if _MIG_DEVICE.search(driver_name):
        return None
    for pattern, model in _PATTERNS:
        if pattern.search(driver_name):
            return model
    return None


def model_named(name: str) -> GpuModel:
    """The model with that catalogue name or a unique prefix of it ("H200").

    Raises ValueError, with the possible names, for none or several.
    """
    wanted = name.upper()
    exact = [m for m in MODELS if m.name.upper() == wanted]
    found = exact or [m for m in MODELS if m.name.upper().startswith(wanted)]
    if len(found) == 1:
        return found[0]
    choice = ", ".join(m.name for m in (found or MODELS))
    problem = "several GPU models start with" if found else "unknown GPU model"
    raise ValueError(f"{problem} {name!r}; choose one of {choice}")
