"""Tests the GPUs that it sees, by small kernels of PyTorch or CuPy: a program that `gpuwarden agent test-gpus` runs.

It imports nothing of gpuwarden, so that any Python that has one of the libraries can run it. Each line that it prints is a
JSON object: `{"library": NAME VERSION}`, then `{"begin": TEST}` and `{"test": TEST, "value": ..., "wrong": ..., "finding": ...}`
for each test. `wrong`: how many elements were not what they must be.

Matrices have small integers, so that every element of a product is exact in any order of summation; the first product
is checked by Freivalds' method (1979) in FP64, all later ones must equal it.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

GIB, MIB = 1024**3, 1024**2
MEMORY_SHARE = 0.9
"""Of the free device memory that is tested."""
PATTERNS = {"0x00": 0, "0xFF": -1, "0x55": 0x55555555, "0xAA": -0x55555556}
"""Of 32-bit words."""
TIMED_S = 0.2
"""Least work between two readings of the clock."""
TIMES_MAX = 8192
SEED = 7
SIZES = ((24 * GIB, 16_384), (6 * GIB, 8192), (0, 2048))
KINDS = {"matmul_fp32": "float32", "matmul_fp16": "float16"}


class NoLibrary(Exception):  # noqa: N818  an expected outcome
    """The library is not installed, or sees no GPU; one line."""


class NumPy:
    """NumPy on the CPU, which CuPy's arrays are like: to try the tests without a GPU."""

    def __init__(self) -> None:
        self.xp = importlib.import_module("numpy")
        self.name = f"numpy {self.xp.__version__}"

    sizes: tuple[tuple[int, int], ...] = ((0, 256),)
    """Rows of the matrices, by the least of free memory."""
    copied_bytes = 8 * MIB

    def free_bytes(self) -> int:
        """Device memory that nobody uses."""
        return 64 * MIB

    def devices(self) -> int:
        """How many GPUs it sees."""
        return 2

    def use(self, device: int) -> None:
        """What is made from now on is on this GPU."""

    def wait(self) -> None:
        """Wait until the GPU has done everything."""

    def release(self) -> None:
        """Free the memory that the library keeps for itself."""

    def words(self, count: int) -> Any:
        """32-bit words of device memory, not set."""
        return self.xp.empty(count, dtype=self.xp.int32)

    def ramp(self, count: int) -> Any:
        """The words 0, 1, 2 and so on."""
        return self.xp.arange(count, dtype=self.xp.int32)

    def pinned(self, count: int) -> Any:
        """Words of host memory that the GPU copies by itself."""
        return self.xp.empty(count, dtype=self.xp.int32)

    def fill(self, words: Any, value: int) -> None:
        """Set all words to a value."""
        words.fill(value)

    def copy(self, target: Any, source: Any) -> None:
        """Copy within the device, or between two."""
        target[...] = source

    def to_device(self, target: Any, source: Any) -> None:
        """Copy from pinned memory."""
        target[...] = source

    def from_device(self, target: Any, source: Any) -> None:
        """Copy to pinned memory."""
        target[...] = source

    def differing(self, some: Any, others: Any) -> Any:
        """How many elements are not equal: a number on the device."""
        return (some != others).sum()

    def matrix(self, size: int, most: int, kind: str, seed: int) -> Any:
        """A square matrix of integers from -most to most, as float32, float16 or float64."""
        made = self.xp.random.RandomState(seed).randint(-most, most + 1, size=(size, size))
        return made.astype(kind)

    def vector(self, size: int, seed: int) -> Any:
        """A column of integers from 1 to 100 in FP64."""
        made = self.xp.random.RandomState(seed).randint(1, 101, size=(size, 1))
        return made.astype("float64")

    def precise(self, matrix: Any) -> Any:
        """A copy in FP64."""
        return matrix.astype("float64")

    def multiply(self, left: Any, right: Any, into: Any) -> None:
        """The product of two matrices."""
        self.xp.matmul(left, right, out=into)


class CuPy(NumPy):
    """CuPy. https://docs.cupy.dev/en/stable/reference/"""

    sizes = SIZES
    copied_bytes = GIB

    def __init__(self) -> None:
        try:
            self.xp = importlib.import_module("cupy")
            self._cupyx = importlib.import_module("cupyx")
            count = self.devices()
        except Exception as error:
            raise NoLibrary(f"CuPy: {error}") from error
        if not count:
            raise NoLibrary("CuPy sees no GPU")
        self.name = f"cupy {self.xp.__version__}"

    def free_bytes(self) -> int:
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def devices(self) -> int:
        return int(self.xp.cuda.runtime.getDeviceCount())

    def use(self, device: int) -> None:
        self.xp.cuda.Device(device).use()

    def wait(self) -> None:
        self.xp.cuda.Device().synchronize()

    def release(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()

    def pinned(self, count: int) -> Any:
        return self._cupyx.empty_pinned(count, dtype=self.xp.int32)

    def copy(self, target: Any, source: Any) -> None:
        target.data.copy_from_device_async(source.data, source.nbytes)

    def to_device(self, target: Any, source: Any) -> None:
        target.set(source)

    def from_device(self, target: Any, source: Any) -> None:
        source.get(out=target)


class Torch(NumPy):
    """PyTorch. https://docs.pytorch.org/docs/stable/"""

    sizes = SIZES
    copied_bytes = GIB

    def __init__(self, on: str = "cuda") -> None:
        try:
            self.xp = importlib.import_module("torch")
        except Exception as error:
            raise NoLibrary(f"PyTorch: {error}") from error
        if on == "cuda" and not self.xp.cuda.is_available():
            raise NoLibrary("PyTorch sees no GPU")
        self._on = on
        self.name = f"torch {self.xp.__version__}"

    def free_bytes(self) -> int:
        return int(self.xp.cuda.mem_get_info()[0])

    def devices(self) -> int:
        return int(self.xp.cuda.device_count())

    def use(self, device: int) -> None:
        self.xp.cuda.set_device(device)

    def wait(self) -> None:
        self.xp.cuda.synchronize()

    def release(self) -> None:
        self.xp.cuda.empty_cache()

    def words(self, count: int) -> Any:
        return self.xp.empty(count, dtype=self.xp.int32, device=self._on)

    def ramp(self, count: int) -> Any:
        return self.xp.arange(count, dtype=self.xp.int32, device=self._on)

    def pinned(self, count: int) -> Any:
        return self.xp.empty(count, dtype=self.xp.int32, pin_memory=self._on == "cuda")

    def fill(self, words: Any, value: int) -> None:
        words.fill_(value)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def to_device(self, target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)

    def from_device(self, target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)

    def matrix(self, size: int, most: int, kind: str, seed: int) -> Any:
        return self._integers((size, size), -most, most + 1, seed).to(getattr(self.xp, kind))

    def vector(self, size: int, seed: int) -> Any:
        return self._integers((size, 1), 1, 101, seed).to(self.xp.float64)

    def precise(self, matrix: Any) -> Any:
        return matrix.to(self.xp.float64)

    def _integers(self, shape: tuple[int, int], low: int, high: int, seed: int) -> Any:
        generator = self.xp.Generator(device=self._on).manual_seed(seed)
        return self.xp.randint(low, high, shape, generator=generator, device=self._on)


LIBRARIES: dict[str, Callable[[], NumPy]] = {"torch": Torch, "cupy": CuPy, "numpy": NumPy}


def found_library(wanted: str) -> NumPy:
    """The library of that name; `auto`: PyTorch, else CuPy. Raises NoLibrary."""
    if wanted != "auto":
        return LIBRARIES[wanted]()
    reasons = []
    for make in (Torch, CuPy):
        try:
            return make()
        except NoLibrary as error:
            reasons.append(str(error))
    raise NoLibrary("; ".join(reasons))


def say(**document: Any) -> None:
    """Print one line."""
    print(json.dumps(document), flush=True)


def memory(library: NumPy, seconds: float) -> dict[str, Any]:
    """Write patterns to most of the free memory and read them again, at least once."""
    count = min(256 * MIB, library.free_bytes() // 16) // 4
    ramp = library.ramp(count)
    blocks = []
    # Comparing needs room for a result.
    for _ in range(max(1, int(library.free_bytes() * MEMORY_SHARE) // (count * 4) - 2)):
        try:
            blocks.append(library.words(count))
        except Exception:  # noqa: BLE001  each library has its own error for this
            break
    if not blocks:
        raise MemoryError("no memory could be allocated")
    wrong: dict[str, int] = {}
    until, passes = time.monotonic() + seconds, 0
    while not passes or time.monotonic() < until:
        for name, value in PATTERNS.items():
            for block in blocks:
                library.fill(block, value)
            library.wait()
            wrong[name] = wrong.get(name, 0) + sum(int(library.differing(b, value)) for b in blocks)
        for number, block in enumerate(blocks):
            library.copy(block, ramp)
            block ^= number << 16
        library.wait()
        for number, block in enumerate(blocks):
            block ^= number << 16
            wrong["addresses"] = wrong.get("addresses", 0) + int(library.differing(block, ramp))
        passes += 1
    tested = len(blocks) * count * 4
    found = {name: errors for name, errors in wrong.items() if errors}
    said = ", ".join(f"{errors} wrong words of {name}" for name, errors in found.items())
    return {
        "value": sum(wrong.values()),
        "wrong": sum(wrong.values()),
        "finding": said or f"{tested / MIB:,.0f} MiB kept {len(wrong)} patterns, {passes} times",
    }


def matmul(library: NumPy, seconds: float, kind: str) -> dict[str, Any]:
    """Multiply matrices whose product is known, and check each product. The rate is the median of short times."""
    # FP16 keeps integers up to 2,048: with -1, 0 and 1 a sum of 16,384 products has a standard deviation of 85.
    size = next(rows for least, rows in library.sizes if library.free_bytes() >= least)
    most = 8 if kind == "float32" else 1
    left, right = (library.matrix(size, most, kind, SEED + n) for n in (0, 1))
    first, again = (library.matrix(size, 0, kind, 0) for _ in range(2))
    library.multiply(left, right, first)
    library.wait()
    by = library.vector(size, SEED + 2)
    expected = library.precise(left) @ (library.precise(right) @ by)
    wrong = int(library.differing(library.precise(first) @ by, expected))
    del expected
    rounds, differing = 0, 0

    def product() -> None:
        nonlocal rounds, differing
        library.multiply(left, right, again)
        differing += library.differing(again, first)
        rounds += 1

    value = _rate(library, product, 2 * size**3, seconds) / 1e12
    wrong += int(differing)
    return {
        "value": value,
        "wrong": wrong,
        "finding": f"{wrong} elements of products are wrong" if wrong else f"{rounds} products of {size} x {size} are right",
    }  # fmt: skip


def copies(library: NumPy, seconds: float, way: str) -> dict[str, Any]:
    """Copy a pattern within the device, to it or from it, and compare what arrived."""
    count = min(library.copied_bytes, library.free_bytes() // 4) // 4
    source, target, pattern = library.words(count), library.words(count), PATTERNS["0xAA"]
    library.fill(source, pattern)
    library.fill(target, 0)
    library.wait()
    if way == "copy_device":
        # Each byte is read and written.
        value = _copy_rate(library, lambda: library.copy(target, source), 8 * count, seconds)
    else:
        host = library.pinned(count)
        library.from_device(host, source)
        library.wait()
        if way == "copy_to_device":
            value = _copy_rate(library, lambda: library.to_device(target, host), 4 * count, seconds)
        else:
            value = _copy_rate(
                library, lambda: library.from_device(host, source), 4 * count, seconds
            )
            library.to_device(target, host)
            library.wait()
    wrong = int(library.differing(target, pattern))
    said = f"{wrong} words arrived wrong" if wrong else f"blocks of {count * 4 // MIB} MiB"
    return {"value": value, "wrong": wrong, "finding": said}


def peers(library: NumPy, seconds: float, device: int) -> dict[str, Any]:
    """Copy from one GPU to each other one; the value is that of the slowest."""
    pattern, wrong, rates = PATTERNS["0x55"], 0, {}
    library.use(device)
    count = min(library.copied_bytes, library.free_bytes() // 4) // 4
    source = library.words(count)
    library.fill(source, pattern)
    library.wait()
    for other in range(library.devices()):
        if other == device:
            continue
        library.use(other)
        target = library.words(count)
        library.fill(target, 0)
        library.wait()
        library.use(device)
        rates[other] = _copy_rate(library, lambda: library.copy(target, source), 4 * count, seconds)  # noqa: B023  it is called at once
        library.use(other)
        library.wait()
        wrong += int(library.differing(target, pattern))
        library.use(device)
    slowest = min(rates, key=lambda other: rates[other])
    said = (
        f"{wrong} words arrived wrong"
        if wrong
        else f"the slowest of {len(rates)} is GPU {{{slowest}}}"
    )
    return {"value": rates[slowest], "wrong": wrong, "finding": said}  # fmt: skip


def _copy_rate(library: NumPy, work: Callable[[], None], bytes_each: int, seconds: float) -> float:
    """GB/s of copies, the first of which is not timed."""
    work()
    library.wait()
    return _rate(library, work, bytes_each, seconds) / 1e9


def _rate(library: NumPy, work: Callable[[], None], amount: int, seconds: float) -> float:
    """How much of some work is done in a second, the median of short times; `amount`: of each call."""
    rates: list[float] = []
    until, times = time.monotonic() + seconds, 1
    while not rates or time.monotonic() < until:
        begin = time.perf_counter()
        for _ in range(times):
            work()
        library.wait()
        took = max(time.perf_counter() - begin, 1e-9)
        rates.append(amount * times / took)
        if took < TIMED_S and times < TIMES_MAX:
            times *= 2
            rates = rates[-1:]
    return _median(rates)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def run(library: NumPy, tests: list[str], seconds: float) -> None:
    """Run tests one after another. What a library raises is the finding of its test, and the last line."""
    say(library=library.name)
    library.use(0)
    for test in tests:
        say(begin=test)
        try:
            say(test=test, **one(library, test, seconds))
        except Exception as error:
            # After an error of CUDA the context is lost: what follows would fail for the same reason.
            say(test=test, failed=f"{type(error).__name__}: {error}"[:300])
            raise SystemExit(1) from error


def one(library: NumPy, test: str, seconds: float) -> dict[str, Any]:
    """Run a test: its value, how many elements were wrong, and a finding. `copy_peer 2`: from the third GPU."""
    library.release()
    if test == "memory":
        return memory(library, seconds)
    if test in KINDS:
        return matmul(library, seconds, KINDS[test])
    name, _, device = test.partition(" ")
    if name == "copy_peer":
        return peers(library, min(seconds, 0.5), int(device))
    return copies(library, min(seconds, 5.0), test)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=("auto", *LIBRARIES), default="auto")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    try:
        library = found_library(args.library)
    except NoLibrary as error:
        say(missing=str(error))
        return 3
    run(library, args.tests, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
