"""Workloads to record, each a process: `python workloads.py [--pretend]` forks one for each request.

The parent imports torch once and does not touch the GPU. Requests come on standard input: `start
NAME`, `stop`, end of input. Answers go to standard output as JSON lines: `{"pid": ...}` when a
workload was forked, `{"ready": NAME}` when it is at work, `{"NAME": value}` for what it achieved in
the last second, `{"skipped": why}`. `stop` kills the workload's process group, whatever it does.
With --pretend nothing is computed.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

LIFE_S = 180
"""A workload that nobody stops ends by itself."""

GIB = 1024**3
DECODE_S = 0.02
"""CPU time of one item of the data loaders."""
STORAGE_WAIT_S = 0.06
"""Delay of the slow storage for an item; it sleeps, so the worker is in S, not D."""


def say(**what: Any) -> None:
    """One JSON line, whole, also when several processes write."""
    os.write(1, (json.dumps(what) + "\n").encode())


class Meter:
    """Says once a second how much was done."""

    def __init__(self, unit: str) -> None:
        self._unit, self._done, self._since = unit, 0.0, time.monotonic()

    def add(self, amount: float) -> None:
        """So much more was done."""
        self._done += amount
        now = time.monotonic()
        if now - self._since >= 1:
            say(**{self._unit: self._done / (now - self._since)})
            self._done, self._since = 0.0, now


def idle_held(torch: Any) -> Iterator[None]:
    """A process that holds memory and does nothing."""
    held = torch.zeros(8 * GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    while held is not None:
        yield
        time.sleep(0.5)


def matmul(torch: Any) -> Iterator[None]:
    """Large BF16 matrix products on random numbers, one after another."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    meter = Meter("flop_per_second")
    while True:
        for _ in range(50):
            torch.matmul(a, b, out=out)
        torch.cuda.synchronize()
        yield
        meter.add(50 * 2 * size**3)


def small_kernels(torch: Any) -> Iterator[None]:
    """Kernels so small that Python cannot launch them fast enough."""
    x = torch.ones(64, device="cuda")
    meter = Meter("kernels_per_second")
    while True:
        for _ in range(2000):
            x = x * 1.0001 + 0.0001
        torch.cuda.synchronize()
        yield
        meter.add(4000)


def memory_bound(torch: Any) -> Iterator[None]:
    """Sums of arrays that no cache holds."""
    x, y = (torch.randn(GIB, device="cuda", dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(x)
    meter = Meter("bytes_per_second")
    while True:
        for _ in range(20):
            torch.add(x, y, out=out)
        torch.cuda.synchronize()
        yield
        meter.add(20 * 3 * 4 * GIB)


def host_to_device(torch: Any) -> Iterator[None]:
    """Large copies from pinned host memory."""
    host = torch.empty(2 * GIB, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    meter = Meter("bytes_per_second")
    while True:
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        yield
        meter.add(2 * GIB)


def spin(torch: Any) -> Iterator[None]:
    """One thread that loops on the GPU and never ends: a hang, as a lost peer makes one."""
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    yield
    while x is not None:
        torch.cuda._sleep(2**40)
        torch.cuda.synchronize()


def leak(torch: Any) -> Iterator[None]:
    """Device memory that grows by half a GiB a second, beside a little work."""
    kept: list[Any] = []
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    meter = Meter("leaked_bytes_per_second")
    while True:
        free, total = torch.cuda.mem_get_info()
        if free > 0.2 * total:
            kept.append(torch.ones(GIB // 8, device="cuda", dtype=torch.float32))
            meter.add(GIB // 2)
        for _ in range(20):
            a = torch.nn.functional.normalize(a @ a)
        torch.cuda.synchronize()
        yield
        time.sleep(1.0)


def loader_few_workers(torch: Any) -> Iterator[None]:
    """Two workers that decode, where the GPU could take ten times as much."""
    return _training(torch, 2, _decoded)


def loader_none(torch: Any) -> Iterator[None]:
    """num_workers=0: the main thread decodes, then the GPU computes, never both."""
    return _training(torch, 0, _decoded)


def slow_storage(torch: Any) -> Iterator[None]:
    """Eight workers that wait for a slow file system."""
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(1024**2))
        file.flush()

        def read(index: int) -> None:
            time.sleep(STORAGE_WAIT_S)
            os.pread(file.fileno(), 1024**2, 0)

        yield from _training(torch, 8, read)


def _decoded(index: int) -> None:
    began = time.thread_time()
    while time.thread_time() - began < DECODE_S:
        sum(range(2000))


def _training(torch: Any, workers: int, fetch: Callable[[int], None]) -> Iterator[None]:
    """A small network that is trained on items which `fetch` makes one by one."""

    class Items(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> Any:
            fetch(index)
            return torch.zeros(3, 128, 128)

    torch.set_num_threads(1)
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    items = torch.utils.data.DataLoader(
        Items(), batch_size=16, num_workers=workers, pin_memory=True
    )
    meter = Meter("items_per_second")
    for batch in items:
        # Enough passes for a step that is worth watching.
        for _ in range(30):
            optimizer.zero_grad()
            model(batch.cuda(non_blocking=True)).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        yield
        meter.add(16)


def transformer(torch: Any) -> Iterator[None]:
    """Training of a transformer of known size in BF16: what a job's own count of operations says."""
    width, layers, heads, context, batch = 2048, 12, 16, 1024, 16
    functional = torch.nn.functional

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into = torch.nn.Linear(width, 3 * width, bias=False)
            self.out = torch.nn.Linear(width, width, bias=False)
            self.up = torch.nn.Linear(width, 4 * width, bias=False)
            self.down = torch.nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            parts = self.into(functional.layer_norm(x, (width,))).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(functional.layer_norm(x, (width,)))))

    model = torch.nn.Sequential(*(Block() for _ in range(layers))).cuda().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.randn(batch, context, width, device="cuda", dtype=torch.bfloat16)
    weights = sum(p.numel() for p in model.parameters())
    # 6 operations a weight and token; a causal mask halves what attention needs.
    a_token = 6 * weights + 6 * layers * context * width
    flops, tokens = Meter("flop_per_second"), Meter("tokens_per_second")
    while True:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        yield
        flops.add(batch * context * a_token)
        tokens.add(batch * context)


def shared(torch: Any) -> Iterator[None]:
    """Two processes on one GPU by time slicing: one computes, the other holds more memory and
    launches small kernels.
    """
    if os.fork() == 0:
        held = torch.zeros(16 * GIB, dtype=torch.uint8, device="cuda")
        for _ in small_kernels(torch):
            if held is None:
                break
        os._exit(0)
    yield from matmul(torch)


def pretend() -> Iterator[None]:
    """No work at all."""
    while True:
        yield
        time.sleep(0.05)


WORKLOADS: dict[str, Callable[[Any], Iterator[None]]] = {
    work.__name__: work
    for work in (
        matmul, idle_held, small_kernels, loader_few_workers, loader_none, slow_storage,
        transformer, shared, host_to_device, memory_bound, spin, leak,
    )
}  # fmt: skip
"""In the order in which they are worth recording."""


def work(name: str, torch: Any) -> None:
    """Do it until killed; "ready" after the first round."""
    signal.alarm(LIFE_S)
    rounds = pretend() if torch is None else WORKLOADS[name](torch)
    for number, _ in enumerate(rounds):
        if number == 0:
            say(ready=name)


def serve(torch: Any) -> None:
    """Answer requests until standard input ends."""
    pid = 0
    for line in itertools.chain(iter(sys.stdin.readline, ""), ["stop"]):
        command, _, name = line.strip().partition(" ")
        if command == "stop" and pid:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            say(stopped=pid)
            pid = 0
        elif command == "start":
            pid = _forked(name, torch)


def _forked(name: str, torch: Any) -> int:
    pid = os.fork()
    # Both sides do it, so that the group is there for the first of them.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    if pid:
        return pid
    say(pid=os.getpid())  # by the one that says "ready" next, so that nobody reads that first
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    try:
        work(name, torch)
    except BaseException as error:  # noqa: BLE001  # the caller must know
        say(skipped=f"{type(error).__name__}: {error}"[:300])
    os._exit(0)


def main() -> None:
    """Import torch, or say that there is none, and serve."""
    torch = None
    if "--pretend" not in sys.argv:
        try:
            import torch
            import torch.utils.data
        except ImportError as error:
            say(skipped=f"torch cannot be imported: {error}")
            return
    say(serving=True)
    serve(torch)


if __name__ == "__main__":
    main()
