"""The model catalogue recognises the names that drivers really give."""

import csv
from pathlib import Path

import pytest
from tests.each import each

from gpuwarden.models import MODELS, SIMULATED, find_model, model_named, tensor_rate

CATALOG = Path(__file__).parents[3] / "shared" / "data" / "catalog"


@pytest.mark.parametrize(
    ("driver_name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A10G", "A10G-24GB"),
        ("NVIDIA A10", "A10-24GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("NVIDIA L4", "L4-24GB"),
        ("Tesla T4", "T4-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM-32GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 2080 SUPER", None),
        ("Matrox G200", None),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA H20", "H20-96GB"),
        ("NVIDIA H20-3e", "H20-96GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM-80GB"),
        ("NVIDIA A30", "A30-24GB"),
        ("NVIDIA L40", "L40-48GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX-4070-Ti-SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX-4070-Ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX-3090-Ti"),
        ("NVIDIA RTX 4000 SFF Ada Generation", None),
        ("NVIDIA Jetson AGX Orin Developer Kit", "Jetson-AGX-Orin"),
        ("AMD Instinct MI300A", "MI300A-128GB"),
        ("AMD Instinct MI250X / MI250", "MI250X-128GB"),
        ("AMD Instinct MI210", "MI210-64GB"),
        ("Google TPU v5e", "TPU-v5e"),
        ("Google TPU7x", "TPU7x"),
        ("AWS Trainium", "Trainium"),
        ("AWS Trainium2", "Trainium2"),
        ("AWS Inferentia2", "Inferentia2"),
        ("HL-225", "Gaudi2-96GB"),
        ("HL-325L", "Gaudi3-128GB"),
        ("HL-205", "Gaudi-32GB"),
        ("Intel Data Center GPU Max 1550", "Max-1550-128GB"),
        ("Ascend 910B4", "Ascend-910B"),
        ("910B2C", "Ascend-910B"),
        ("Ascend910", None),
        ("Apple M1", "M1"),
        ("Apple M3 Max", "M3-Max"),
        ("n300 L", "Wormhole-n300"),
        ("p150a", "Blackhole-p150"),
    ],
)
def test_driver_names_find_their_model(driver_name: str, model: str | None) -> None:
    found = find_model(driver_name)
    assert (found.name if found else None) == model


@each("model", SIMULATED)
def test_a_simulated_name_finds_its_own_model(model) -> None:
    assert find_model(model.driver_name) is model
    assert model.idle_watts < model.tdp_watts
    assert model.price is None or 0.1 < model.price.usd_per_hour < 20


def test_a_model_is_named_by_a_unique_start() -> None:
    assert model_named("h200").name == "H200-SXM-141GB"
    with pytest.raises(
        ValueError, match="several GPU models start with 'H100'; choose one of H100"
    ):
        model_named("H100")
    with pytest.raises(ValueError, match="unknown GPU model 'X9'"):
        model_named("X9")


def test_default_prices_agree_with_their_source() -> None:
    """Each price is one that the collected price list has for that model and provider."""
    path = CATALOG / "gpu_prices_usd_per_gpu_hour.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the checkout")
    listed = {
        (row["provider"], float(row["usd_per_gpu_hour_on_demand"]))
        for row in csv.DictReader(path.open())
    }
    for model in MODELS:
        if model.price and model.price.provider in {p for p, _ in listed}:
            close = [
                usd
                for provider, usd in listed
                if provider == model.price.provider and abs(usd - model.price.usd_per_hour) < 0.01
            ]
            assert close, model.name


@pytest.mark.parametrize("profile", ["1g.10gb", "3g.40gb", "1c.3g.40gb", "1g.10gb+me"])
def test_a_part_of_a_gpu_has_neither_its_model_nor_its_price(profile: str) -> None:
    assert find_model("NVIDIA H100 80GB HBM3") is not None
    assert find_model(f"NVIDIA H100 80GB HBM3 MIG {profile}") is None


def test_the_tensor_rate_is_that_of_a_matrix_product_on_an_h200() -> None:
    """BF16 of 8192 x 8192: 654 TFLOPS at 1,500 MHz, tensor activity 92.2 %."""
    rate = tensor_rate("H200-SXM-141GB", 92.19 * 1500)
    assert rate is not None
    assert rate.tflops_of_data_sheet == 989
    assert 654.3 / rate.tflops_at_most == pytest.approx(0.88, abs=0.005)
    full = tensor_rate("H200-SXM-141GB", 100.0 * 1830)
    assert full is not None and full.percent == 100
    assert tensor_rate("H200-SXM-141GB", None) is None
    assert tensor_rate("A100-SXM-80GB", 5e4) is None
    assert tensor_rate(None, 5e4) is None


@each("model", MODELS)
def test_rates_of_smaller_types_are_not_lower(model) -> None:
    """FP32 without tensor cores, TF32, BF16, FP8: each is at least the one before."""
    rates = [model.peaks.fp32, model.peaks.tf32, model.tflops, model.peaks.fp8]
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known), known
    assert all(rate > 0 for rate in known)


def test_a_data_sheet_agrees_with_the_collected_specifications() -> None:
    path = CATALOG / "gpu_specs_curated.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the checkout")
    by_name = {model.name: model for model in MODELS}
    compared = 0
    for row in csv.DictReader(path.open()):
        name = row["model"].replace("SXM2", "SXM").replace("SXM4", "SXM").replace("SXM5", "SXM")
        model = by_name.get(name)
        if model is None:
            continue
        compared += 1
        assert model.bandwidth_gb_s == float(row["mem_bw_gbs"]), name
        assert model.tflops == float(row["fp16_bf16_dense_tflops"]), name
        assert model.tdp_watts == float(row["tdp_w"]), name
    assert compared >= 10
