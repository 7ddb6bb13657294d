"""Kernels find a wrong bit wherever it is made, and find none in a GPU that is well. NumPy's arrays stand for CuPy's."""

from typing import Any

import numpy as np
import pytest

from gpuwarden.gpu_test import TESTS
from gpuwarden_cli.gpu_test import kernels
from gpuwarden_cli.gpu_test.kernels import NoLibrary, NumPy, found_library, one
from gpuwarden_cli.gpu_test.run import KERNEL_TESTS

ALL = (*KERNEL_TESTS, "copy_peer 1")


class Small(NumPy):
    """A GPU of 8 MiB, that can have a fault."""

    sizes = ((0, 64),)
    copied_bytes = 2**20

    def free_bytes(self) -> int:
        return 8 * 2**20


class StuckBit(Small):
    """A bit of memory that is always set."""

    def fill(self, words: Any, value: int) -> None:
        super().fill(words, value)
        words[12_345] |= 0x40


class FadingMemory(Small):
    """A word that forgets what is copied to it."""

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        target[7] ^= 1


class WrongProduct(Small):
    """An element of the nth product is wrong in its last bit."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self._left = wrong
        self.kinds: set[str] = set()

    def multiply(self, left: Any, right: Any, into: Any) -> None:
        super().multiply(left, right, into)
        self._left -= 1
        self.kinds |= {str(one.dtype) for one in (left, right, into)}
        if self._left == 0:
            into[3, 5] = np.nextafter(into[3, 5], into.dtype.type(np.inf))


class BadCable(Small):
    """One way over PCIe changes a byte."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way

    def to_device(self, target: Any, source: Any) -> None:
        super().to_device(target, source)
        target[9] ^= 0x100 if self._way == "copy_to_device" else 0

    def from_device(self, target: Any, source: Any) -> None:
        super().from_device(target, source)
        target[9] ^= 0x100 if self._way == "copy_from_device" else 0


def test_a_gpu_that_is_well_passes_each_test_with_a_value() -> None:
    assert {name.partition(" ")[0] for name in ALL} | {"nccl", "dcgm"} == TESTS.keys()
    said = {}
    for name in ALL:
        found = one(Small(), name, 0.0)
        assert found.pop("wrong") == 0, (name, found)
        assert found.pop("value") > 0 or name == "memory"
        said[name] = found
    assert said == {
        "memory": {"finding": "6 MiB kept 5 patterns, 1 times"},
        "matmul_fp32": {"finding": "1 products of 64 x 64 are right"},
        "matmul_fp16": {"finding": "1 products of 64 x 64 are right"},
        **{
            name: {"finding": "blocks of 1 MiB"} for name in KERNEL_TESTS if name.startswith("copy")
        },
        "copy_peer 1": {"finding": "the slowest of 1 is GPU {0}"},
    }


def test_bits_of_memory_that_do_not_keep_are_counted_by_pattern() -> None:
    found = one(StuckBit(), "memory", 0.0)
    # 0x55 has the bit, 0xFF too; 0x00 and 0xAA do not. One word in each block.
    blocks = int(Small().free_bytes() * 0.9) // (8 * 2**20 // 16) - 2
    assert found["wrong"] == found["value"] == 2 * blocks
    assert found["finding"] == f"{blocks} wrong words of 0x00, {blocks} wrong words of 0xAA"
    assert "wrong words of addresses" in one(FadingMemory(), "memory", 0.0)["finding"]


@pytest.mark.parametrize("test", ["matmul_fp32", "matmul_fp16"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_wrong_element_of_any_product_is_found(test: str, number: int) -> None:
    library = WrongProduct(number)
    found = one(library, test, 0.3)
    assert library.kinds == {kernels.KINDS[test]}
    assert found["wrong"] >= 1 and "wrong" in found["finding"]


@pytest.mark.parametrize("way", ["copy_to_device", "copy_from_device"])
def test_a_byte_that_arrives_wrong_is_found(way: str) -> None:
    assert one(BadCable(way), way, 0.01)["wrong"] == 1
    assert one(FadingMemory(), "copy_device", 0.01)["wrong"] == 1
    assert one(FadingMemory(), "copy_peer 0", 0.01)["wrong"] == 1


class Timed(Small):
    """Ten milliseconds for a product, one for a copy of a MiB, by a clock of its own."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def multiply(self, left: Any, right: Any, into: Any) -> None:
        super().multiply(left, right, into)
        self.now += 0.01

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        self.now += 0.001

    def to_device(self, target: Any, source: Any) -> None:
        super().to_device(target, source)
        self.now += 0.002

    def from_device(self, target: Any, source: Any) -> None:
        super().from_device(target, source)
        self.now += 0.004


class Three(Timed):
    """Three GPUs; words on the third arrive slowly, those on the first and third wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._device = 0
        self._of: dict[int, int] = {}
        self.kept: list[Any] = []

    def devices(self) -> int:
        return 3

    def use(self, device: int) -> None:
        self._device = device

    def words(self, count: int) -> Any:
        made = super().words(count)
        self.kept.append(made)
        self._of[id(made)] = self._device
        return made

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        assert self._of[id(source)] == self._device == 1, "a GPU copies its own words"
        device = self._of[id(target)]
        assert device != 1, "to another GPU"
        target[:3] ^= 1
        self.now += 0.005 if device == 2 else 0


def test_the_slowest_of_other_gpus_counts_and_all_wrong_words() -> None:
    with pytest.MonkeyPatch.context() as patched:
        library = Three()
        patched.setattr(kernels, "time", library)
        found = one(library, "copy_peer 1", 0.05)
    assert found == {
        "value": pytest.approx(2**20 / 0.006 / 1e9),
        "wrong": 6,
        "finding": "6 words arrived wrong",
    }


@pytest.mark.parametrize("seconds", [0.001, 0.05, 1.0, 3.0])
def test_a_rate_is_work_over_its_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    library = Timed()
    monkeypatch.setattr(kernels, "time", library)
    assert one(library, "matmul_fp32", seconds)["value"] == pytest.approx(2 * 64**3 / 0.01 / 1e12)
    assert one(library, "copy_device", seconds)["value"] == pytest.approx(2 * 2**20 / 0.001 / 1e9)
    for way, took in (
        ("copy_peer 0", 0.001),
        ("copy_to_device", 0.002),
        ("copy_from_device", 0.004),
    ):
        assert one(library, way, seconds)["value"] == pytest.approx(2**20 / took / 1e9)
    assert library.now >= 3 * min(seconds, 0.5)


class Keeping(Small):
    """A library that keeps the memory that was freed, until it is told to free it."""

    kept = 0

    def words(self, count: int) -> Any:
        self.kept += count * 4
        return super().words(count)

    def free_bytes(self) -> int:
        return max(2**18, super().free_bytes() - self.kept)

    def release(self) -> None:
        self.kept = 0


def test_what_one_test_used_is_free_for_the_next() -> None:
    library = Keeping()
    sizes = [one(library, "copy_device", 0.0)["finding"] for _ in range(3)]
    assert one(library, "memory", 0.0)["wrong"] == 0 and len(set(sizes)) == 1


def test_a_library_that_is_missing_says_which() -> None:
    with pytest.raises(NoLibrary, match="PyTorch: .*CuPy: "):
        found_library("auto")
