"""The loops themselves: `python jobs.py SCENARIO`, started by `record.py` where PyTorch is.

PyTorch, its DataLoader, its workers, the files and the CPU time are real; the device is a `Meter`, which is
busy exactly while the loop is in its step. BENCH_* variables say the rest. A cost is CPU time,
not a number of operations, so that a label holds on any machine.
"""

import ctypes
import hashlib
import http.client
import http.server
import mmap
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from meter import Meter
from torch.utils.data import DataLoader, Dataset

SCENARIO = sys.argv[1] if len(sys.argv) > 1 else ""
STEP_S = float(os.environ.get("BENCH_STEP_S", "0.3"))
SEED = int(os.environ.get("BENCH_SEED", "1"))
RANK = int(os.environ.get("BENCH_RANK", "0"))
WORKERS = os.environ.get("BENCH_WORKERS")
"""Overrides the scenario's number of workers: the search for the one that is enough."""
FILES = Path(os.environ.get("BENCH_FILES", "."))
STORE = os.environ.get("BENCH_STORE", "")
"""host:port of the store of files on the network."""
SIDE = 224
BATCH = 4
ENDLESS = 10**9
MB = 1_000_000
GIB = 1024**3
TRAINING_BYTES, TRAINING_POWER = 40 * GIB, 0.85
_SPUN = bytes(1 << 20)


def varied(low: float, high: float, what: str = "") -> float:
    """A number that the seed decides."""
    return random.Random(f"{SCENARIO} {what} {SEED}").uniform(low, high)


@dataclass(frozen=True)
class Cost:
    """CPU time that batches take to decode, in steps of the GPU."""

    steps: float
    slow_steps: float | None = None
    """The same of every sixth batch, where that differs."""

    def sample_s(self, index: int) -> float:
        """Of one sample, in seconds."""
        is_slow = self.slow_steps is not None and index // BATCH % 6 == 0
        steps = self.slow_steps if is_slow and self.slow_steps is not None else self.steps
        return steps * STEP_S * random.Random(index * 1000 + SEED).uniform(0.85, 1.15) / BATCH


class Samples(Dataset[torch.Tensor]):
    """Files that take CPU time to decode, time to arrive, or both."""

    def __init__(self, cost: Cost, fetch: Callable[[int], bytes], length: int = ENDLESS) -> None:
        """`fetch`: the packed bytes of a sample."""
        self._cost, self._fetch, self._length = cost, fetch, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        began_s, cost_s = time.thread_time(), self._cost.sample_s(index)
        packed = self._fetch(index)
        image = decode(packed)
        while time.thread_time() - began_s < cost_s:
            image = decode(packed)
        return image


def decode(packed: bytes) -> torch.Tensor:
    """A few milliseconds of what loaders do: unpack, resize, flip, normalise."""
    pixels = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)
    image = pixels.view(1, 3, SIDE, SIDE).float()
    image = F.interpolate(image, size=(256, 256), mode="bilinear", antialias=True)
    return ((image[0, :, 16 : 16 + SIDE, 16 : 16 + SIDE].flip(-1) - 127.5) / 64).to(torch.float16)


PACKED = zlib.compress(random.Random(1).randbytes(SIDE * SIDE) * 3, 1)


def small_files(index: int) -> bytes:
    """Small files, through the page cache; a longer step has a larger batch, so more of them."""
    for number in range(index, index + max(1, round(STEP_S / 0.3))):
        packed = (FILES / f"small-{number % 16}").read_bytes()
    return packed


def from_memory(index: int) -> bytes:
    """A sample that is in memory already."""
    return PACKED


def read_directly(path: Path, offset: int, count: int) -> None:
    """Read past the page cache: the caller is in D state until the disk has answered."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, count)  # O_DIRECT wants whole pages
        os.preadv(file, [buffer], offset)
    finally:
        os.close(file)


def throttled_file(index: int) -> bytes:
    """A sample on the slow disk: a batch takes the disk about two steps."""
    share = 2 * MB * STEP_S * varied(1.6, 2.4) / BATCH
    count = max(mmap.PAGESIZE, int(share) // mmap.PAGESIZE * mmap.PAGESIZE)
    rounds = (64 * MB - count) // mmap.PAGESIZE
    read_directly(FILES / "large", index * 7919 % rounds * mmap.PAGESIZE, count)
    return PACKED


def far_file(index: int) -> bytes:
    """A sample from a store that takes its time: a batch takes a worker about 3.6 steps."""
    wait_s = STEP_S * varied(3.2, 4.0) / BATCH
    url = f"http://{STORE}/?bytes={int(6 * MB * STEP_S)}&wait_s={wait_s}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        while answer.read(1 << 20):
            pass
    return PACKED


def loader(
    workers: int,
    cost: Cost | float,
    *,
    fetch: Callable[[int], bytes] = small_files,
    length: int = ENDLESS,
    **more: Any,
) -> Any:
    """Batches; `cost`: CPU time of a batch, in steps of the GPU."""
    cost = cost if isinstance(cost, Cost) else Cost(cost)
    chosen = workers if WORKERS is None else int(WORKERS)
    return DataLoader(Samples(cost, fetch, length), batch_size=BATCH, num_workers=chosen, **more)


def spin(until_s: float) -> None:
    """Wait as cudaStreamSynchronize does: all of a core, without the interpreter's lock."""
    while time.monotonic() < until_s:
        hashlib.sha256(_SPUN)


def step(gpu: Meter, seconds: float = STEP_S, *, spins: bool = False) -> None:
    """Forward, backward and the wait for both."""
    with gpu:
        if spins:
            spin(time.monotonic() + seconds)
        else:
            time.sleep(seconds)
    gpu.receive(BATCH * 3 * SIDE * SIDE * 2)


def train(gpu: Meter, batches: Any, *, spins: bool = False) -> Iterator[None]:
    """The loop that all training has; yields after each step."""
    gpu.hold(TRAINING_BYTES, TRAINING_POWER)
    for _ in batches:
        step(gpu, spins=spins)
        gpu.stepped()
        yield


def run(gpu: Meter, batches: Any, *, spins: bool = False) -> None:
    """Train, and nothing else."""
    for _ in train(gpu, batches, spins=spins):
        pass


def healthy(gpu: Meter) -> None:
    run(gpu, loader(2, 0.1))


def healthy_spin(gpu: Meter) -> None:
    run(gpu, loader(2, 0.1), spins=True)


def healthy_tight(gpu: Meter) -> None:
    run(gpu, loader(1, varied(0.75, 0.82)))


def loader_workers(gpu: Meter) -> None:
    run(gpu, loader(1, varied(1.5, 1.9)))


def loader_cores(gpu: Meter) -> None:
    run(gpu, loader(3, varied(1.3, 1.7)))


def pin_to_first_core(worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def loader_affinity(gpu: Meter) -> None:
    run(gpu, loader(3, varied(1.6, 2.0), worker_init_fn=pin_to_first_core))


def loader_main(gpu: Meter) -> None:
    run(gpu, loader(0, varied(0.6, 0.9)), spins=SEED % 2 == 0)


def loader_threads(gpu: Meter) -> None:
    """Decode in threads of the process, as DALI and tf.data do."""
    samples = Samples(Cost(varied(3.2, 3.8)), small_files)
    ready: queue.Queue[torch.Tensor] = queue.Queue(2 * BATCH)

    def fill() -> None:
        index = 0
        while True:
            ready.put(samples[index])
            index += 1

    for _ in range(2):
        threading.Thread(target=fill, daemon=True).start()
    run(gpu, iter(lambda: [ready.get() for _ in range(BATCH)], None))


def storage_disk(gpu: Meter) -> None:
    run(gpu, loader(2, 0.05, fetch=throttled_file))


def storage_network(gpu: Meter) -> None:
    run(gpu, loader(2, 0.05, fetch=far_file))


def prefetch(gpu: Meter) -> None:
    run(gpu, loader(2, Cost(0.6, varied(5.5, 6.5))))


def name_thread(name: str) -> None:
    """Name of this thread in /proc and top."""
    ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME


def pin_copy(gpu: Meter) -> None:
    """PyTorch pins in a thread of this name where there is a device; here it copies as much."""
    cost_s = STEP_S * varied(1.5, 1.9)
    pinned: queue.Queue[torch.Tensor] = queue.Queue(2)

    def pin() -> None:
        name_thread("pt_data_pin")
        for batch in loader(1, 0.1):
            began_s = time.thread_time()
            while time.thread_time() - began_s < cost_s:
                batch = batch.repeat(16, 1, 1, 1)[: BATCH * 8].clone()[:BATCH]
            pinned.put(batch)

    threading.Thread(target=pin, daemon=True).start()
    run(gpu, iter(pinned.get, None))


def host_bound(gpu: Meter) -> None:
    """Many small kernels: the device does each in less time than the next one takes to launch."""
    share, x = varied(0.3, 0.45), torch.ones(64)
    gpu.hold(TRAINING_BYTES, 0.4)
    for _ in loader(2, 0.1):
        began_s = time.monotonic()
        while (now_s := time.monotonic()) - began_s < STEP_S / share:
            for _ in range(200):
                x = x * 1.0001 + 0.0001
            gpu.worked(share * (time.monotonic() - now_s))
        gpu.stepped()


def every(gpu: Meter, spell_s: float, pause: Callable[[], None], *, spins: bool = False) -> None:
    """Healthy training with a pause after each spell."""
    last_s = time.monotonic() - spell_s * varied(0.3, 0.7, "phase")
    for _ in train(gpu, loader(2, 0.1), spins=spins):
        if time.monotonic() - last_s >= spell_s:
            pause()
            last_s = time.monotonic()


def checkpoint(gpu: Meter) -> None:
    """State is gathered on the host, then written and synced."""
    state = {"model": torch.ones(1_500 * MB // 4)}
    path = FILES / f"checkpoint-{os.getpid()}"

    def save() -> None:
        time.sleep(3)  # from the device, and the ranks' barrier
        with path.open("wb") as file:
            path.unlink()  # so that nothing is left of it, whenever this process is ended
            torch.save(state, file)
            os.fsync(file.fileno())
        time.sleep(2)

    every(gpu, varied(40, 50), save)


def evaluation(gpu: Meter) -> None:
    scores = torch.rand(2_000_000)

    def measure() -> None:
        until_s = time.monotonic() + varied(11, 14)
        while time.monotonic() < until_s:
            scores.sort()

    every(gpu, varied(40, 50), measure, spins=SEED % 2 == 0)


def epoch_restart(gpu: Meter) -> None:
    batches = max(3, round(varied(14, 18) / STEP_S))
    data = loader(
        2, 0.3, length=batches * BATCH, multiprocessing_context="spawn", fetch=from_memory
    )
    while True:
        run(gpu, data)


def small_batch(gpu: Meter) -> None:
    """Steps of four milliseconds that Python takes six to launch."""
    gpu.hold(6 * GIB, 0.35)
    batches = iter(loader(2, 0.002, fetch=from_memory))
    while True:
        next(batches)
        for _ in range(50):
            began_s = time.thread_time()
            while time.thread_time() - began_s < 0.006:
                pass
            step(gpu, 0.004)
        gpu.stepped()


def idle_held(gpu: Meter) -> None:
    gpu.hold(30 * GIB, 0)
    gpu.ready()
    signal.pause()


def hang_blocked(gpu: Meter) -> None:
    """A barrier that one rank never reaches."""
    address = Path(os.environ["BENCH_SHARED"]) / "ranks"
    torch.distributed.init_process_group("gloo", f"file://{address}", rank=RANK, world_size=2)
    gpu.hold(TRAINING_BYTES, 0.0)
    gpu.ready()
    if RANK:
        torch.distributed.barrier()
    threading.Event().wait()


def hang_spin(gpu: Meter) -> None:
    """All ranks wait in a kernel that does no work."""
    gpu.hold(TRAINING_BYTES, 0.08)
    gpu.ready()
    with gpu:
        threading.Event().wait()


def hang_disk(gpu: Meter) -> None:
    """The main thread is in a read that takes minutes."""
    gpu.hold(TRAINING_BYTES, 0.0)
    gpu.ready()
    time.sleep(3)  # until the limit holds
    while True:
        read_directly(FILES / "large", 0, 1 << 20)


def serving(gpu: Meter) -> None:
    """A server of HTTP; its clients come when they like, in spells."""
    gpu.hold(60 * GIB, 0.5)
    rng = random.Random(SEED)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            step(gpu, rng.lognormvariate(-0.5, 0.8))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing to say."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=ask, args=(server.server_port,), daemon=True).start()
    gpu.ready()
    server.serve_forever()


def ask(port: int) -> None:
    """Requests one after another, now many, now none."""
    rng = random.Random(SEED + 1)
    while True:
        for _ in range(rng.randint(1, 12)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/generate")
            connection.getresponse().read()
            connection.close()
        time.sleep(rng.expovariate(1 / 6))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tempfile.tempdir = os.environ.get("BENCH_SHARED")
    gpu = Meter(Path(os.environ["BENCH_METER"]))
    gpu.begin()
    LOOPS[SCENARIO](gpu)


LOOPS: dict[str, Callable[[Meter], None]] = {
    loop.__name__: loop
    for loop in (
        healthy, healthy_spin, healthy_tight, loader_workers, loader_cores, loader_affinity,
        loader_main, loader_threads, storage_disk, storage_network, prefetch, pin_copy, host_bound,
        checkpoint, evaluation, epoch_restart, small_batch, idle_held, hang_blocked, hang_spin,
        hang_disk, serving,
    )
} | {"serving_own": serving}  # fmt: skip

if __name__ == "__main__":
    main()
