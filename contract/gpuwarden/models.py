"""Defines models of accelerators: values that a device does not report, above all its price.

The device reports power limits, temperatures, PCIe, links and memory. This table adds bandwidth, dense TFLOPS by
type and price; for models that the simulator imitates also idle power, clocks and links.

Sources: memory, bandwidth, TFLOPS and TDP from the vendors' data sheets and architecture papers (Google: Cloud TPU
documentation; AWS: Neuron documentation; Intel: Hot Chips 2024; Huawei: the CloudMatrix384 paper, 2025; Tenstorrent:
product pages; Apple: press releases, which have no TFLOPS since M3). Rates of GeForce and RTX are those with FP32
accumulation, without sparsity: with FP16 accumulation GeForce does twice as much. What a vendor does not publish is
None. Idle power, clocks and SXM limits as observed in nvidia-smi dumps of that model where one exists. Prices are
on-demand USD per device and hour, of the provider named, taken in mid-2026 from the SkyPilot catalogue and gpuhunt;
others from AWS's, GCP's and Azure's list prices divided by devices. They are defaults, which an operator should
replace (docs/money.md).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Price:
    """On-demand price of one GPU per hour, its provider, and when it was read."""

    usd_per_hour: float
    provider: str
    read_on: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Dense rates without sparsity, in TFLOPS and (int8) TOPS; None: not published, or not supported."""

    fp32: float | None = None
    """Without tensor cores."""
    tf32: float | None = None
    fp8: float | None = None
    int8: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model of the catalogue."""

    name: str
    pattern: str
    """Regular expression that the driver's name for the model matches; first match wins."""
    vendor: str
    """As `gpus.vendor`."""
    kind: str
    """As `gpus.kind`."""
    memory_gib: float | None
    """None: it shares the host's memory, or is made with several sizes."""
    bandwidth_gb_s: float | None
    tflops: float | None
    """FP16 or BF16."""
    tdp_watts: int | None
    price: Price | None

    @property
    def peaks(self) -> Peaks:
        """Rates in other types."""
        return _PEAKS.get(self.name, Peaks())


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel(Model):
    """A GPU of which all is known that the simulator needs."""

    memory_gib: int
    bandwidth_gb_s: int
    tflops: float
    tdp_watts: int
    idle_watts: int
    sm_clock_max_mhz: int
    memory_clock_mhz: int
    nvlinks: int

    @property
    def driver_name(self) -> str:
        """A name such as the driver reports, for the simulator."""
        known = _DRIVER_NAMES.get(self.name)
        return known or f"{'AMD Instinct' if self.vendor == 'amd' else 'NVIDIA'} {self.name}"


def _price(usd: float, provider: str, read_on: str = "2026-06") -> Price:
    return Price(usd, provider, read_on)


def _gpu(
    name: str,
    pattern: str,
    memory_gib: int,
    bandwidth_gb_s: int,
    tflops: float,
    tdp_watts: int,
    idle_watts: int,
    sm_clock_max_mhz: int,
    memory_clock_mhz: int,
    nvlinks: int,
    price: Price | None,
) -> GpuModel:
    return GpuModel(
        name=name,
        pattern=pattern,
        vendor="amd" if name.startswith("MI") else "nvidia",
        kind="gpu",
        memory_gib=memory_gib,
        bandwidth_gb_s=bandwidth_gb_s,
        tflops=tflops,
        tdp_watts=tdp_watts,
        idle_watts=idle_watts,
        sm_clock_max_mhz=sm_clock_max_mhz,
        memory_clock_mhz=memory_clock_mhz,
        nvlinks=nvlinks,
        price=price,
    )


def _of(
    vendor: str,
    kind: str,
    *rows: tuple[str, str, float | None, float | None, float | None, int | None],
    prices: Mapping[str, Price] = MappingProxyType({}),
) -> tuple[Model, ...]:
    """Models of a vendor: name, pattern, GiB, GB/s, TFLOPS, TDP."""
    return tuple(
        Model(
            name=name,
            pattern=pattern,
            vendor=vendor,
            kind=kind,
            memory_gib=memory,
            bandwidth_gb_s=bandwidth,
            tflops=tflops,
            tdp_watts=tdp,
            price=prices.get(name),
        )
        for name, pattern, memory, bandwidth, tflops, tdp in rows
    )


# fmt: off
SIMULATED: tuple[GpuModel, ...] = (
    # name, pattern, GiB, GB/s, TFLOPS, TDP, idle W, SM MHz, memory MHz, NVLinks, price
    _gpu("GB200", r"\bGB200\b", 186, 8000, 2500, 1200, 140, 2062, 3996, 18, None),
    _gpu("B300-SXM-288GB", r"\bB300\b", 288, 8000, 2250, 1100, 140, 2032, 3996, 18, None),
    _gpu("B200-SXM-180GB", r"\bB200\b", 180, 8000, 2250, 1000, 140, 1965, 3996, 18, _price(5.50, "nebius")),
    _gpu("GH200-96GB", r"\bGH200\b", 96, 4000, 989, 700, 90, 1980, 2619, 18, _price(2.29, "lambda")),
    _gpu("H200-SXM-141GB", r"\bH200\b", 141, 4800, 989, 700, 78, 1980, 3201, 18, _price(3.50, "nebius")),
    _gpu("H100-NVL", r"\bH100\b.*\bNVL\b", 94, 3938, 835, 400, 60, 1785, 2619, 12, None),
    _gpu("H100-PCIe-80GB", r"\bH100\b.*PCIe", 80, 2039, 756, 350, 50, 1755, 1593, 12, None),
    _gpu("H100-SXM-80GB", r"\bH100\b", 80, 3352, 989, 700, 70, 1980, 2619, 18, _price(2.95, "nebius")),
    _gpu("A100-PCIe-40GB", r"\bA100\b.*PCI.*40GB", 40, 1555, 312, 250, 35, 1410, 1215, 12, _price(1.45, "crusoe")),
    _gpu("A100-PCIe-80GB", r"\bA100\b.*PCI", 80, 1935, 312, 300, 45, 1410, 1512, 12, _price(1.65, "crusoe")),
    _gpu("A100-SXM-40GB", r"\bA100\b.*40GB", 40, 1555, 312, 400, 60, 1410, 1215, 12, _price(3.67, "gcp", "2026")),
    _gpu("A100-SXM-80GB", r"\bA100\b", 80, 2039, 312, 400, 62, 1410, 1593, 12, _price(1.95, "crusoe")),
    _gpu("A40-48GB", r"\bA40\b", 48, 696, 150, 300, 30, 1740, 7251, 4, _price(0.90, "crusoe")),
    _gpu("A10G-24GB", r"\bA10G\b", 24, 600, 70, 300, 22, 1710, 6251, 0, None),
    _gpu("A10-24GB", r"\bA10\b", 24, 600, 125, 150, 20, 1695, 6251, 0, None),
    _gpu("L40S-48GB", r"\bL40S\b", 48, 864, 362, 350, 35, 2520, 9001, 0, _price(1.55, "nebius")),
    _gpu("L4-24GB", r"\bL4\b", 24, 300, 121, 72, 12, 2040, 6251, 0, None),
    _gpu("RTX-PRO-6000-96GB", r"RTX[ -]PRO[ -]6000", 96, 1597, 500, 600, 30, 2430, 14001, 0, None),
    _gpu("RTX-6000-Ada-48GB", r"RTX[ -]6000[ -]Ada", 48, 960, 364, 300, 20, 3105, 10001, 0, None),
    _gpu("RTX-A6000-48GB", r"RTX[ -]A6000", 48, 768, 155, 300, 22, 2100, 8001, 4, _price(1.09, "lambda")),
    _gpu("RTX-5090", r"RTX[ -]5090(?! D| Laptop)", 32, 1792, 210, 575, 25, 3090, 14001, 0, None),
    _gpu("RTX-4090", r"RTX[ -]4090(?! D| Laptop)", 24, 1008, 165, 450, 27, 3120, 10501, 0, None),
    _gpu("RTX-3090", r"RTX[ -]3090(?! Ti)", 24, 936, 71, 350, 25, 2100, 9751, 4, None),
    _gpu("RTX-2080-Ti", r"RTX[ -]2080[ -]Ti", 11, 616, 53.8, 250, 20, 2100, 7000, 2, None),
    _gpu("V100-SXM-32GB", r"\bV100\b.*SXM.*32GB", 32, 900, 125, 300, 40, 1530, 877, 6, None),
    _gpu("V100-SXM-16GB", r"\bV100\b(?!.*(?:PCI|32GB))", 16, 900, 125, 300, 40, 1530, 877, 6, _price(0.79, "lambda")),
    _gpu("T4-16GB", r"\bT4\b", 16, 320, 65, 70, 10, 1590, 5001, 0, _price(1.09, "azure", "2026")),
    _gpu("P100-16GB", r"\bP100\b", 16, 720, 18.7, 300, 26, 1328, 715, 4, None),
    _gpu("MI355X-288GB", r"\bMI355X?\b", 288, 8000, 2517, 1400, 150, 2400, 2000, 7, None),
    _gpu("MI325X-256GB", r"\bMI325X?\b", 256, 6000, 1307, 1000, 140, 2100, 1500, 7, None),
    _gpu("MI300X-192GB", r"\bMI300X?\b", 192, 5300, 1307, 750, 140, 2100, 1300, 7, _price(3.45, "crusoe")),
    _gpu("MI250X-128GB", r"\bMI250X?\b", 128, 3277, 383, 560, 90, 1700, 1600, 8, None),
    _gpu("MI100-32GB", r"\bMI100\b", 32, 1229, 185, 300, 40, 1502, 1200, 3, None),
)

MODELS: tuple[Model, ...] = (
    *SIMULATED,
    *_of(
        "nvidia", "gpu",
        ("GB300", r"\bGB300\b", 288, 8000, 2500, 1400),
        ("B100-SXM-192GB", r"\bB100\b", 192, 8000, 1750, 700),
        ("H20-96GB", r"\bH20\b", 96, 4000, 148, 400),
        ("H800-PCIe-80GB", r"\bH800\b.*PCIe", 80, 2039, 756, 350),
        ("H800-SXM-80GB", r"\bH800\b", 80, 3352, 989, 700),
        ("A800-PCIe-80GB", r"\bA800\b.*PCI", 80, 1935, 312, 300),
        ("A800-SXM-80GB", r"\bA800\b", 80, 2039, 312, 400),
        ("A30-24GB", r"\bA30\b", 24, 933, 165, 165),
        ("A2-16GB", r"\bA2\b", 16, 200, 18, 60),
        ("L40-48GB", r"\bL40\b", 48, 864, 181, 300),
        ("L20-48GB", r"\bL20\b", 48, 864, 119.5, 275),
        ("V100-PCIe-32GB", r"\bV100\b.*PCI.*32GB", 32, 900, 112, 250),
        ("V100-PCIe-16GB", r"\bV100\b.*PCI", 16, 900, 112, 250),
        ("P40-24GB", r"\bP40\b", 24, 346, None, 250),
        ("RTX-5000-Ada-32GB", r"RTX[ -]5000[ -]Ada", 32, 576, 261, 250),
        ("RTX-4500-Ada-24GB", r"RTX[ -]4500[ -]Ada", 24, 432, 158.5, 210),
        ("RTX-4000-Ada-20GB", r"RTX[ -]4000[ -]Ada", 20, 360, 81.9, 130),
        ("RTX-A5000-24GB", r"RTX[ -]A5000", 24, 768, 111, 230),
        ("RTX-A4000-16GB", r"RTX[ -]A4000", 16, 448, 76.7, 140),
        ("RTX-5080", r"RTX[ -]5080(?! Laptop)", 16, 960, 112.6, 360),
        ("RTX-5070-Ti", r"RTX[ -]5070[ -]Ti(?! Laptop)", 16, 896, 87.9, 300),
        ("RTX-5070", r"RTX[ -]5070(?! Ti| Laptop)", 12, 672, 61.7, 250),
        ("RTX-5060-Ti", r"RTX[ -]5060[ -]Ti(?! Laptop)", None, 448, 47.4, 180),
        ("RTX-5060", r"RTX[ -]5060(?! Ti| Laptop)", 8, 448, 38.4, 145),
        ("RTX-4080-SUPER", r"RTX[ -]4080[ -]SUPER", 16, 736, 104.4, 320),
        ("RTX-4080", r"RTX[ -]4080(?! SUPER| Laptop)", 16, 717, 97.5, 320),
        ("RTX-4070-Ti-SUPER", r"RTX[ -]4070[ -]Ti[ -]SUPER", 16, 672, 88.2, 285),
        ("RTX-4070-Ti", r"RTX[ -]4070[ -]Ti(?! SUPER)", 12, 504, 80.2, 285),
        ("RTX-4070-SUPER", r"RTX[ -]4070[ -]SUPER", 12, 504, 71, 220),
        ("RTX-4070", r"RTX[ -]4070(?! Ti| SUPER| Laptop)", 12, 504, 58.3, 200),
        ("RTX-4060-Ti", r"RTX[ -]4060[ -]Ti", None, 288, 44.1, 165),
        ("RTX-4060", r"RTX[ -]4060(?! Ti| Laptop)", 8, 272, 30.2, 115),
        ("RTX-3090-Ti", r"RTX[ -]3090[ -]Ti", 24, 1008, 80, 450),
        ("RTX-3080-Ti", r"RTX[ -]3080[ -]Ti(?! Laptop)", 12, 912, 68.2, 350),
        ("RTX-3080", r"RTX[ -]3080(?! Ti| Laptop)", 10, 760, 59.5, 320),
        ("RTX-3070-Ti", r"RTX[ -]3070[ -]Ti(?! Laptop)", 8, 608, 43.5, 290),
        ("RTX-3070", r"RTX[ -]3070(?! Ti| Laptop)", 8, 448, 40.6, 220),
        ("RTX-3060-Ti", r"RTX[ -]3060[ -]Ti", 8, 448, 32.4, 200),
        ("RTX-3060", r"RTX[ -]3060(?! Ti| Laptop)", 12, 360, 25.5, 170),
        ("Jetson-AGX-Thor", r"Jetson.*Thor|\bThor\b", None, 273, None, 130),
        ("Jetson-AGX-Orin", r"Jetson AGX Orin", None, 205, None, 60),
        ("Jetson-Orin-NX", r"Jetson Orin NX", None, 102, None, 40),
        ("Jetson-Orin-Nano", r"Jetson Orin Nano", None, 102, None, 25),
    ),
    *_of(
        "amd", "gpu",
        ("MI350X-288GB", r"\bMI350X?\b", 288, 8000, 2307, 1000),
        ("MI300A-128GB", r"\bMI300A\b", 128, 5300, 981, 550),
        ("MI250-128GB", r"\bMI250\b", 128, 3277, 362, 560),
        ("MI210-64GB", r"\bMI210\b", 64, 1638, 181, 300),
        ("RX-7900-XTX", r"RX[ -]7900[ -]XTX", 24, 960, 122.8, 355),
        ("RX-7900-XT", r"RX[ -]7900[ -]XT\b", 20, 800, 103, 315),
        ("PRO-W7900-48GB", r"PRO W7900", 48, 864, 122.6, 295),
    ),
    *_of(
        "google", "tpu",
        ("TPU-v2", r"\bTPU v2\b", 16, 700, 46, None),
        ("TPU-v3", r"\bTPU v3\b", 32, 900, 123, None),
        ("TPU-v4", r"\bTPU v4\b", 32, 1228, 275, None),
        ("TPU-v5e", r"\bTPU v5e\b", 16, 819, 197, None),
        ("TPU-v5p", r"\bTPU v5p\b", 95, 2765, 459, None),
        ("TPU-v6e", r"\bTPU v6e\b", 32, 1638, 918, None),
        ("TPU7x", r"\bTPU7x\b", 192, 7380, 2307, None),
        prices={
            "TPU-v4": _price(3.22, "gcp", "2025"),
            "TPU-v5e": _price(1.20, "gcp", "2025"),
            "TPU-v5p": _price(4.20, "gcp", "2025"),
            "TPU-v6e": _price(2.70, "gcp", "2025"),
        },
    ),
    *_of(
        "aws", "npu",
        ("Trainium3", r"\bTrainium3\b", 144, 4900, 671, None),
        ("Trainium2", r"\bTrainium2\b", 96, 2900, 667, None),
        ("Trainium", r"\bTrainium1?\b", 32, 820, 190, None),
        ("Inferentia2", r"\bInferentia2\b", 32, 820, 190, None),
        ("Inferentia", r"\bInferentia1?\b", 8, 50, 64, None),
        prices={
            "Trainium": _price(1.34, "aws", "2026"),
            "Inferentia2": _price(1.08, "aws", "2026"),
        },
    ),
    *_of(
        "intel", "npu",
        ("Gaudi3-128GB", r"\bGaudi ?3\b|HL-3[0-9]{2}", 128, 3670, 1835, 900),
        ("Gaudi2-96GB", r"\bGaudi ?2\b|HL-2(?!0[0-5])[0-9]{2}", 96, 2460, 432, 600),
        ("Gaudi-32GB", r"\bGaudi\b|HL-20[0-5]", 32, 900, 60, 350),
    ),
    *_of(
        "intel", "gpu",
        ("Max-1550-128GB", r"GPU Max 1550", 128, 3277, 839, 600),
        ("Max-1100-48GB", r"GPU Max 1100", 48, 1229, 362, 300),
        ("Flex-170-16GB", r"Flex 170", 16, 576, None, 150),
        ("Arc-B580", r"\bArc\b.*B580", 12, 456, 116.5, 190),
        ("Arc-A770", r"\bArc\b.*A770", None, 560, 137.6, 225),
    ),
    *_of(
        "huawei", "npu",
        ("Ascend-910C", r"\b(?:Ascend )?910(?:C|_93\w*)\b", 128, 3200, 752, None),
        ("Ascend-910B", r"\b(?:Ascend )?910B\w*\b", None, None, None, None),
        ("Ascend-910", r"\b(?:Ascend )?910(?:A\w*)?\b", 32, 1200, 256, 310),
    ),
    *_of(
        "apple", "gpu",
        *((f"M{n}-{tier}", rf"\bM{n} {tier}\b", None, gb_s, None, None) if tier
          else (f"M{n}", rf"\bApple M{n}\b(?! (?:Pro|Max|Ultra))", None, gb_s, None, None)
          for n, tier, gb_s in (
              (1, "", 68), (1, "Pro", 200), (1, "Max", 400), (1, "Ultra", 800),
              (2, "", 100), (2, "Pro", 200), (2, "Max", 400), (2, "Ultra", 800),
              (3, "", 100), (3, "Pro", 150), (3, "Max", 400), (3, "Ultra", 819),
              (4, "", 120), (4, "Pro", 273), (4, "Max", 546), (5, "", 153),
          )),
    ),
    *_of(
        "tenstorrent", "npu",
        ("Blackhole-p150", r"\bp150[abc]?\b", 32, 512, None, 300),
        ("Blackhole-p100", r"\bp100a?\b", 28, 448, None, 300),
        ("Wormhole-n300", r"\bn300[ds]?\b", 24, 576, 131, 300),
        ("Wormhole-n150", r"\bn150[ds]?\b", 12, 288, 74, 160),
    ),
    *_of(
        "mthreads", "gpu",
        ("MTT-S4000-48GB", r"\bMTT S4000\b", 48, 768, 100, 450),
        ("MTT-S80-16GB", r"\bMTT S80\b", 16, 448, None, 255),
    ),
    *_of(
        "cambricon", "npu",
        ("MLU370-X8-48GB", r"\bMLU370-X8\b", 48, 614, 96, 250),
        ("MLU370-X4-24GB", r"\bMLU370-X4\b", 24, 307, 96, 150),
    ),
    *_of(
        "furiosa", "npu",
        ("RNGD-48GB", r"\bRNGD\b", 48, 1500, 256, 180),
    ),
    *_of(
        "rebellions", "npu",
        ("RBLN-CA22-16GB", r"\bRBLN-CA22\b", 16, 256, 32, None),
    ),
)



def _accelerator(
    name: str, driver_name: str, watts: tuple[int, int], clock_mhz: int, memory_gib: int = 0
) -> GpuModel:
    """A model of the catalogue with what no vendor publishes: power at rest and at most, clock."""
    model = next(model for model in MODELS if model.name == name)
    _DRIVER_NAMES[name] = driver_name
    return GpuModel(
        name=name,
        pattern=model.pattern,
        vendor=model.vendor,
        kind=model.kind,
        memory_gib=int(model.memory_gib or memory_gib),
        bandwidth_gb_s=int(model.bandwidth_gb_s or 1600),
        tflops=model.tflops or 10.0,
        tdp_watts=watts[1],
        price=model.price,
        idle_watts=watts[0],
        sm_clock_max_mhz=clock_mhz,
        memory_clock_mhz=1600,
        nvlinks=0,
    )


_DRIVER_NAMES: dict[str, str] = {}
SIMULATED_ACCELERATORS: tuple[GpuModel, ...] = (
    # name, of the driver, watts (assumed where no TDP is published), MHz, GiB where it shares the host's
    _accelerator("TPU-v5p", "TPU v5p", (120, 450), 1750),
    _accelerator("TPU-v6e", "TPU v6e", (80, 300), 1750),
    _accelerator("Trainium2", "AWS Trainium2", (120, 500), 1400),
    _accelerator("Trainium", "AWS Trainium", (90, 350), 1400),
    _accelerator("Inferentia2", "AWS Inferentia2", (50, 190), 1400),
    _accelerator("Gaudi3-128GB", "Intel Gaudi 3 HL-325L", (180, 900), 1600),
    _accelerator("Ascend-910B", "Ascend 910B3", (90, 400), 1800, 64),
    _accelerator("M4-Max", "Apple M4 Max (40-core GPU)", (1, 60), 1578, 64),
    _accelerator("Max-1550-128GB", "Intel Data Center GPU Max 1550", (110, 600), 1600),
    _accelerator("Wormhole-n300", "Tenstorrent n300", (40, 300), 1000),
    _accelerator("MTT-S4000-48GB", "Moore Threads MTT S4000", (60, 450), 1750),
    _accelerator("MLU370-X8-48GB", "Cambricon MLU370-X8", (40, 250), 1300),
    _accelerator("RNGD-48GB", "FuriosaAI RNGD", (40, 180), 2000),
    _accelerator("RBLN-CA22-16GB", "Rebellions RBLN-CA22", (20, 85), 1000),
    _accelerator("Jetson-AGX-Orin", "NVIDIA Jetson AGX Orin Developer Kit", (4, 40), 1300, 64),
)
"""Accelerators of other vendors that the simulator imitates."""

_PEAKS: Mapping[str, Peaks] = {
    # fp32, tf32, fp8, int8
    "GB300": Peaks(80, 1250, 5000, None),
    "GB200": Peaks(80, 1250, 5000, 5000),
    "B300-SXM-288GB": Peaks(75, 1125, 4500, None),
    "B200-SXM-180GB": Peaks(75, 1125, 4500, 4500),
    "B100-SXM-192GB": Peaks(60, 900, 3500, 3500),
    "GH200-96GB": Peaks(67, 495, 1979, 1979),
    "H200-SXM-141GB": Peaks(67, 495, 1979, 1979),
    "H100-SXM-80GB": Peaks(67, 495, 1979, 1979),
    "H100-NVL": Peaks(60, 418, 1671, 1671),
    "H100-PCIe-80GB": Peaks(51, 378, 1513, 1513),
    "H800-SXM-80GB": Peaks(67, 495, 1979, 1979),
    "H800-PCIe-80GB": Peaks(51, 378, 1513, 1513),
    "H20-96GB": Peaks(44, 74, 296, 296),
    **{f"{a}-{b}": Peaks(19.5, 156, None, 624) for a in ("A100", "A800") for b in ("SXM-80GB", "PCIe-80GB")},
    "A100-SXM-40GB": Peaks(19.5, 156, None, 624),
    "A100-PCIe-40GB": Peaks(19.5, 156, None, 624),
    "A30-24GB": Peaks(10.3, 82, None, 330),
    "A40-48GB": Peaks(37.4, 74.8, None, 299.3),
    "A10-24GB": Peaks(31.2, 62.5, None, 250),
    "A10G-24GB": Peaks(35, 35, None, 140),
    "A2-16GB": Peaks(4.5, 9, None, 36),
    "L40S-48GB": Peaks(91.6, 183, 733, 733),
    "L40-48GB": Peaks(90.5, 90.5, 362, 362),
    "L20-48GB": Peaks(59.8, 59.8, 239, 239),
    "L4-24GB": Peaks(30.3, 60, 242, 242),
    "RTX-6000-Ada-48GB": Peaks(91.1, None, 728, 728),
    "RTX-A6000-48GB": Peaks(38.7, 77.4, None, 309.7),
    "RTX-5090": Peaks(104.8, None, 419, 838),
    "RTX-4090": Peaks(82.6, 82.6, 330.3, 660.6),
    "RTX-3090": Peaks(35.6, 35.6, None, 284),
    "T4-16GB": Peaks(8.1, None, None, 130),
    "V100-SXM-32GB": Peaks(15.7),
    "V100-SXM-16GB": Peaks(15.7),
    "V100-PCIe-32GB": Peaks(14),
    "V100-PCIe-16GB": Peaks(14),
    "P100-16GB": Peaks(9.3),
    "P40-24GB": Peaks(11.8, None, None, 47),
    "MI355X-288GB": Peaks(157.3, None, 5033, 5033),
    "MI350X-288GB": Peaks(144.2, None, 4614, 4614),
    "MI325X-256GB": Peaks(163.4, 653.7, 2615, 2615),
    "MI300X-192GB": Peaks(163.4, 653.7, 2615, 2615),
    "MI300A-128GB": Peaks(122.6, 490, 1961, 1961),
    "MI250X-128GB": Peaks(47.9, None, None, 383),
    "MI250-128GB": Peaks(45.3, None, None, 362),
    "MI210-64GB": Peaks(22.6, None, None, 181),
    "MI100-32GB": Peaks(23.1, None, None, 185),
    "RX-7900-XTX": Peaks(61.4),
    "PRO-W7900-48GB": Peaks(61.3),
    "TPU-v4": Peaks(int8=275),
    "TPU-v5e": Peaks(int8=393),
    "TPU-v5p": Peaks(int8=918),
    "TPU-v6e": Peaks(int8=1836),
    "TPU7x": Peaks(fp8=4614),
    "Trainium": Peaks(fp32=47.5, fp8=190),
    "Trainium2": Peaks(fp8=1299),
    "Trainium3": Peaks(fp8=2517),
    "Inferentia2": Peaks(fp32=47.5, fp8=190),
    "Inferentia": Peaks(int8=128),
    "Gaudi3-128GB": Peaks(fp8=1835),
    "Gaudi2-96GB": Peaks(fp8=865),
    "Max-1550-128GB": Peaks(fp32=52.4),
    "Ascend-910C": Peaks(int8=1504),
    "Ascend-910": Peaks(int8=512),
    "Wormhole-n300": Peaks(fp8=466),
    "Wormhole-n150": Peaks(fp8=262),
    "Blackhole-p150": Peaks(fp8=664),
    "Blackhole-p100": Peaks(fp8=664),
    "M1": Peaks(fp32=2.6),
    "M1-Pro": Peaks(fp32=5.2),
    "M1-Max": Peaks(fp32=10.4),
    "M1-Ultra": Peaks(fp32=21),
    "M2": Peaks(fp32=3.6),
    "M2-Max": Peaks(fp32=13.6),
}
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


def find_model(driver_name: str) -> Model | None:
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
    """The model that the simulator imitates, by its catalogue name or a unique prefix of it ("H200").

    Raises ValueError, with the possible names, for none or several.
    """
    wanted = name.upper()
    models = (*SIMULATED, *SIMULATED_ACCELERATORS)
    exact = [m for m in models if m.name.upper() == wanted]
    found = exact or [m for m in models if m.name.upper().startswith(wanted)]
    if len(found) == 1:
        return found[0]
    choice = ", ".join(m.name for m in (found or models))
    problem = "several GPU models start with" if found else "unknown GPU model"
    raise ValueError(f"{problem} {name!r}; choose one of {choice}")


def models_named(text: str) -> tuple[GpuModel, ...]:
    """Models that the simulator imitates, separated by commas. Raises ValueError."""
    return tuple(model_named(name.strip()) for name in text.split(","))
