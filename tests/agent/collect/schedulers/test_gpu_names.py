"""GPUs by the names that schedulers give them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames

A, B = "GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-2222-3333-4444-555555555555"
MIG = "MIG-11111111-2222-3333-4444-555555555555"
OLD_MIG = f"MIG-{A}/1/0"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    # The second board has the first device file.
    for bus, minor in (("0000:01:00.0", 1), ("0000:02:00.0", 0)):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        (tmp_path / "gpus" / bus / "information").write_text(text)
    return tmp_path


BUS_IDS = {"0000:01:00.0": (0, A), "0000:02:00.0": (1, B)}


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        (A, (0, A)),
        (f"{B}::3", (1, B)),
        ("0", (1, B)),
        ("nvidia1", (0, A)),
        ("/dev/nvidia1", (0, A)),
        ("nvidia1/vgpu2", (0, A)),
        ("nvidia7", None),
        (MIG, (None, MIG)),
        (OLD_MIG, (None, OLD_MIG)),
        (
            "GPU-99999999-2222-3333-4444-555555555555",
            (None, "GPU-99999999-2222-3333-4444-555555555555"),
        ),
        ("gpu-1", (0, A)),
        ("gpu-1-mig-9-4-4", None),
        ("0000:02:00.0", (1, B)),
        ("0000:03:00.0", None),
        ("nic0", None),
        ("", None),
    ],
)
def test_any_name_of_a_device_leads_to_its_gpu(
    name: str, gpu: tuple[int | None, str] | None, driver: Path
) -> None:
    assert GpuNames(BUS_IDS, driver).find(name) == gpu


def test_without_the_modules_word_the_order_of_buses_counts(tmp_path: Path) -> None:
    assert GpuNames(BUS_IDS, tmp_path).find("1") == (1, B)


def test_gpus_that_are_opened_later_are_found_then(driver: Path) -> None:
    bus_ids: dict[str, tuple[int, str]] = {}
    names = GpuNames(bus_ids, driver)
    assert names.find("1") is None
    bus_ids.update(BUS_IDS)
    assert names.find("1") == (0, A)


@given(st.text(max_size=20))
def test_rubbish_names_nothing_or_a_file(name: str) -> None:
    found = GpuNames(BUS_IDS, Path("/nonexistent")).find(name)
    assert found is None or found[1] in (A, B)
