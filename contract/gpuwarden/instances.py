"""Defines instances that clouds rent with accelerators: their devices, CPUs, memory and price.

Prices are list prices on demand in USD per hour and instance, Linux, without tax, in the region named; reserved is one
year without payment in advance. Sources: AWS's list prices as instances.vantage.sh has them (2025-12); OCI's as the
SkyPilot catalogue has them (2026-06), the same in all regions; GCP's and Azure's price pages (2025). Vendors change
them: they are defaults, which an operator should replace (docs/money.md). None: the vendor publishes none.
"""

from dataclasses import dataclass

_OF_CLOUD = {
    # cloud: region and month of its prices
    "aws": ("us-east-1", "2025-12"),
    "azure": ("eastus", "2025"),
    "gcp": ("us-central1", "2025"),
    "oci": ("all regions", "2026-06"),
}
CLOUDS = tuple(_OF_CLOUD)


@dataclass(frozen=True, slots=True)
class Instance:
    """A type of instance, by the name that the cloud's metadata has for it."""

    name: str
    cloud: str
    """One of `CLOUDS`."""
    model: str
    """Of the catalogue of models."""
    gpus: int
    """Devices, as an agent on it counts them."""
    vcpus: int
    memory_gib: int
    usd_per_hour: float | None
    reserved_usd_per_hour: float | None = None

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Its price, divided by its devices."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpus

    @property
    def price_region(self) -> str:
        """Where that is its price."""
        return _OF_CLOUD[self.cloud][0]

    @property
    def price_read_on(self) -> str:
        """Year, or year and month, of its price."""
        return _OF_CLOUD[self.cloud][1]


def _of(
    cloud: str, *rows: tuple[str, str, int, int, int, float | None, *tuple[float, ...]]
) -> tuple[Instance, ...]:
    return tuple(
        Instance(name, cloud, model, gpus, vcpus, memory, usd, *reserved)
        for name, model, gpus, vcpus, memory, usd, *reserved in rows
    )


# fmt: off
INSTANCES: tuple[Instance, ...] = (
    *_of(
        "aws",  # name, model, devices, vCPUs, GiB, on demand, reserved
        ("p6-b300.48xlarge", "B300-SXM-288GB", 8, 192, 4096, 142.416),
        ("p6-b200.48xlarge", "B200-SXM-180GB", 8, 192, 2048, 113.9328),
        ("p6e-gb200.36xlarge", "GB200", 4, 144, 960, None),
        ("p5en.48xlarge", "H200-SXM-141GB", 8, 192, 2048, 63.296),
        ("p5e.48xlarge", "H200-SXM-141GB", 8, 192, 2048, None),
        ("p5.48xlarge", "H100-SXM-80GB", 8, 192, 2048, 55.04),
        ("p5.4xlarge", "H100-SXM-80GB", 1, 16, 256, 6.88),
        ("p4de.24xlarge", "A100-SXM-80GB", 8, 96, 1152, 27.44705, 17.401365),
        ("p4d.24xlarge", "A100-SXM-40GB", 8, 96, 1152, 21.957642, 13.921094),
        ("p3dn.24xlarge", "V100-SXM-32GB", 8, 96, 768, 31.212, 19.215),
        ("p3.16xlarge", "V100-SXM-16GB", 8, 64, 488, 24.48),
        ("p3.8xlarge", "V100-SXM-16GB", 4, 32, 244, 12.24),
        ("p3.2xlarge", "V100-SXM-16GB", 1, 8, 61, 3.06),
        ("g7e.48xlarge", "RTX-PRO-6000-96GB", 8, 192, 2048, 33.14432),
        ("g7e.24xlarge", "RTX-PRO-6000-96GB", 4, 96, 1024, 16.57216),
        ("g7e.12xlarge", "RTX-PRO-6000-96GB", 2, 48, 512, 8.28608),
        ("g7e.8xlarge", "RTX-PRO-6000-96GB", 1, 32, 256, 5.26824),
        ("g7e.4xlarge", "RTX-PRO-6000-96GB", 1, 16, 128, 3.99816),
        ("g7e.2xlarge", "RTX-PRO-6000-96GB", 1, 8, 64, 3.36312),
        ("g6e.48xlarge", "L40S-48GB", 8, 192, 1536, 30.13118, 18.98264),
        ("g6e.24xlarge", "L40S-48GB", 4, 96, 768, 15.06559, 9.49132),
        ("g6e.12xlarge", "L40S-48GB", 4, 48, 384, 10.49264, 6.61036),
        ("g6e.16xlarge", "L40S-48GB", 1, 64, 512, 7.57719, 4.77363),
        ("g6e.8xlarge", "L40S-48GB", 1, 32, 256, 4.52856, 2.85299),
        ("g6e.4xlarge", "L40S-48GB", 1, 16, 128, 3.00424, 1.89267),
        ("g6e.2xlarge", "L40S-48GB", 1, 8, 64, 2.24208, 1.41251),
        ("g6e.xlarge", "L40S-48GB", 1, 4, 32, 1.861, 1.17243),
        ("g6.48xlarge", "L4-24GB", 8, 192, 768, 13.3504, 8.69111),
        ("g6.24xlarge", "L4-24GB", 4, 96, 384, 6.6752, 4.34556),
        ("g6.12xlarge", "L4-24GB", 4, 48, 192, 4.6016, 2.99564),
        ("g6.16xlarge", "L4-24GB", 1, 64, 256, 3.3968, 2.21132),
        ("g6.8xlarge", "L4-24GB", 1, 32, 128, 2.0144, 1.31137),
        ("g6.4xlarge", "L4-24GB", 1, 16, 64, 1.3232, 0.8614),
        ("g6.2xlarge", "L4-24GB", 1, 8, 32, 0.9776, 0.63642),
        ("g6.xlarge", "L4-24GB", 1, 4, 16, 0.8048, 0.52392),
        ("gr6.8xlarge", "L4-24GB", 1, 32, 256, 2.4464, 1.59261),
        ("gr6.4xlarge", "L4-24GB", 1, 16, 128, 1.5392, 1.00202),
        ("g5.48xlarge", "A10G-24GB", 8, 192, 768, 16.288, 10.26144),
        ("g5.24xlarge", "A10G-24GB", 4, 96, 384, 8.144, 5.13072),
        ("g5.12xlarge", "A10G-24GB", 4, 48, 192, 5.672, 3.57336),
        ("g5.16xlarge", "A10G-24GB", 1, 64, 256, 4.096, 2.58048),
        ("g5.8xlarge", "A10G-24GB", 1, 32, 128, 2.448, 1.54224),
        ("g5.4xlarge", "A10G-24GB", 1, 16, 64, 1.624, 1.02312),
        ("g5.2xlarge", "A10G-24GB", 1, 8, 32, 1.212, 0.76356),
        ("g5.xlarge", "A10G-24GB", 1, 4, 16, 1.006, 0.63378),
        ("g4dn.metal", "T4-16GB", 8, 96, 384, 7.824, 4.929),
        ("g4dn.12xlarge", "T4-16GB", 4, 48, 192, 3.912, 2.465),
        ("g4dn.16xlarge", "T4-16GB", 1, 64, 256, 4.352, 2.742),
        ("g4dn.8xlarge", "T4-16GB", 1, 32, 128, 2.176, 1.371),
        ("g4dn.4xlarge", "T4-16GB", 1, 16, 64, 1.204, 0.759),
        ("g4dn.2xlarge", "T4-16GB", 1, 8, 32, 0.752, 0.474),
        ("g4dn.xlarge", "T4-16GB", 1, 4, 16, 0.526, 0.331),
        ("trn2.48xlarge", "Trainium2", 16, 192, 2048, None),
        ("trn1.32xlarge", "Trainium", 16, 128, 512, 21.5, 13.22895),
        ("trn1n.32xlarge", "Trainium", 16, 128, 512, 24.78, 15.24713),
        ("trn1.2xlarge", "Trainium", 1, 8, 32, 1.34375, 0.82681),
        ("inf2.48xlarge", "Inferentia2", 12, 192, 768, 12.98127, 8.1782),
        ("inf2.24xlarge", "Inferentia2", 6, 96, 384, 6.49063, 4.0891),
        ("inf2.8xlarge", "Inferentia2", 1, 32, 128, 1.96786, 1.23975),
        ("inf2.xlarge", "Inferentia2", 1, 4, 16, 0.7582, 0.47767),
        ("inf1.24xlarge", "Inferentia", 16, 96, 192, 4.721, 2.974),
        ("inf1.6xlarge", "Inferentia", 4, 24, 48, 1.18, 0.744),
        ("inf1.2xlarge", "Inferentia", 1, 8, 16, 0.362, 0.228),
        ("inf1.xlarge", "Inferentia", 1, 4, 8, 0.228, 0.144),
    ),
    *_of(
        "gcp",
        ("a4x-highgpu-4g", "GB200", 4, 140, 884, None),
        ("a4-highgpu-8g", "B200-SXM-180GB", 8, 224, 3968, None),
        ("a3-ultragpu-8g", "H200-SXM-141GB", 8, 224, 2952, None),
        ("a3-megagpu-8g", "H100-SXM-80GB", 8, 208, 1872, None),
        ("a3-highgpu-8g", "H100-SXM-80GB", 8, 208, 1872, None),
        ("a3-highgpu-4g", "H100-SXM-80GB", 4, 104, 936, None),
        ("a3-highgpu-2g", "H100-SXM-80GB", 2, 52, 468, None),
        ("a3-highgpu-1g", "H100-SXM-80GB", 1, 26, 234, None),
        ("a3-edgegpu-8g", "H100-SXM-80GB", 8, 208, 1872, None),
        ("a2-ultragpu-8g", "A100-SXM-80GB", 8, 96, 1360, 40.55),
        ("a2-ultragpu-4g", "A100-SXM-80GB", 4, 48, 680, 20.28),
        ("a2-ultragpu-2g", "A100-SXM-80GB", 2, 24, 340, 10.14),
        ("a2-ultragpu-1g", "A100-SXM-80GB", 1, 12, 170, 5.07),
        ("a2-megagpu-16g", "A100-SXM-40GB", 16, 96, 1360, 55.74),
        ("a2-highgpu-8g", "A100-SXM-40GB", 8, 96, 680, 29.39),
        ("a2-highgpu-4g", "A100-SXM-40GB", 4, 48, 340, 14.69),
        ("a2-highgpu-2g", "A100-SXM-40GB", 2, 24, 170, 7.35),
        ("a2-highgpu-1g", "A100-SXM-40GB", 1, 12, 85, 3.67),
        ("g2-standard-96", "L4-24GB", 8, 96, 384, 8.0),
        ("g2-standard-48", "L4-24GB", 4, 48, 192, 4.0),
        ("g2-standard-24", "L4-24GB", 2, 24, 96, 2.0),
        ("g2-standard-32", "L4-24GB", 1, 32, 128, 1.73),
        ("g2-standard-16", "L4-24GB", 1, 16, 64, 1.15),
        ("g2-standard-12", "L4-24GB", 1, 12, 48, 1.0),
        ("g2-standard-8", "L4-24GB", 1, 8, 32, 0.85),
        ("g2-standard-4", "L4-24GB", 1, 4, 16, 0.71),
        ("ct6e-standard-8t", "TPU-v6e", 8, 180, 1440, 21.6),
        ("ct6e-standard-4t", "TPU-v6e", 4, 180, 720, 10.8),
        ("ct6e-standard-1t", "TPU-v6e", 1, 44, 176, 2.7),
        ("ct5p-hightpu-4t", "TPU-v5p", 4, 208, 448, 16.8),
        ("ct5lp-hightpu-8t", "TPU-v5e", 8, 224, 384, 9.6),
        ("ct5lp-hightpu-4t", "TPU-v5e", 4, 112, 192, 4.8),
        ("ct5lp-hightpu-1t", "TPU-v5e", 1, 24, 48, 1.2),
        ("ct4p-hightpu-4t", "TPU-v4", 4, 240, 407, 12.88),
    ),
    *_of(
        "azure",
        ("Standard_ND128isr_NDR_GB200_v6", "GB200", 4, 128, 900, None),
        ("Standard_ND96isr_MI300X_v5", "MI300X-192GB", 8, 96, 1850, None),
        ("Standard_ND96isr_H200_v5", "H200-SXM-141GB", 8, 96, 1850, None),
        ("Standard_ND96isr_H100_v5", "H100-SXM-80GB", 8, 96, 1900, 98.32),
        ("Standard_NC80adis_H100_v5", "H100-NVL", 2, 80, 640, 13.96),
        ("Standard_NC40ads_H100_v5", "H100-NVL", 1, 40, 320, 6.98),
        ("Standard_ND96amsr_A100_v4", "A100-SXM-80GB", 8, 96, 1900, 32.77),
        ("Standard_ND96asr_v4", "A100-SXM-40GB", 8, 96, 900, 27.2),
        ("Standard_NC96ads_A100_v4", "A100-PCIe-80GB", 4, 96, 880, 14.69),
        ("Standard_NC48ads_A100_v4", "A100-PCIe-80GB", 2, 48, 440, 7.35),
        ("Standard_NC24ads_A100_v4", "A100-PCIe-80GB", 1, 24, 220, 3.67),
        ("Standard_ND40rs_v2", "V100-SXM-32GB", 8, 40, 672, 22.03),
        ("Standard_NV72ads_A10_v5", "A10-24GB", 2, 72, 880, 6.52),
        ("Standard_NV36ads_A10_v5", "A10-24GB", 1, 36, 440, 3.2),
        ("Standard_NC64as_T4_v3", "T4-16GB", 4, 64, 440, 4.35),
        ("Standard_NC16as_T4_v3", "T4-16GB", 1, 16, 110, 1.2),
        ("Standard_NC8as_T4_v3", "T4-16GB", 1, 8, 56, 0.75),
        ("Standard_NC4as_T4_v3", "T4-16GB", 1, 4, 28, 0.53),
    ),
    *_of(
        "oci",
        ("BM.GPU.GB300.4", "GB300", 4, 144, 960, 72.0),
        ("BM.GPU.GB200.4", "GB200", 4, 144, 960, 64.0),
        ("BM.GPU.B300.8", "B300-SXM-288GB", 8, 256, 4096, 120.0),
        ("BM.GPU.B200.8", "B200-SXM-180GB", 8, 256, 4096, 112.0),
        ("BM.GPU.H200.8", "H200-SXM-141GB", 8, 224, 3072, 80.0),
        ("BM.GPU.H100.8", "H100-SXM-80GB", 8, 224, 2048, 80.0),
        ("BM.GPU.A100-v2.8", "A100-SXM-80GB", 8, 256, 2048, 32.0),
        ("BM.GPU4.8", "A100-SXM-40GB", 8, 128, 2048, 24.4),
        ("BM.GPU.MI355X.8", "MI355X-288GB", 8, 256, 3072, 68.8),
        ("BM.GPU.MI300X.8", "MI300X-192GB", 8, 224, 2048, 48.0),
        ("BM.GPU.RTXPRO.8", "RTX-PRO-6000-96GB", 8, 288, 3072, 36.0),
        ("BM.GPU.L40S.4", "L40S-48GB", 4, 224, 1024, 14.0),
        ("BM.GPU.A10.4", "A10-24GB", 4, 128, 1024, 8.0),
        ("VM.GPU.A10.2", "A10-24GB", 2, 60, 480, 4.0),
        ("VM.GPU.A10.1", "A10-24GB", 1, 30, 240, 2.0),
        ("BM.GPU3.8", "V100-SXM-16GB", 8, 104, 768, 23.6),
        ("VM.GPU3.4", "V100-SXM-16GB", 4, 48, 360, 11.8),
        ("VM.GPU3.2", "V100-SXM-16GB", 2, 24, 180, 5.9),
        ("VM.GPU3.1", "V100-SXM-16GB", 1, 12, 90, 2.95),
        ("BM.GPU2.2", "P100-16GB", 2, 56, 192, 2.55),
        ("VM.GPU2.1", "P100-16GB", 1, 24, 72, 1.275),
    ),
)
# fmt: on

_BY_NAME = {instance.name.lower(): instance for instance in INSTANCES}


def find_instance(name: str | None) -> Instance | None:
    """The instance of that name, in any case."""
    return None if name is None else _BY_NAME.get(name.lower())
