"""A source whose answers a test decides, in the place of a collector."""

from collections.abc import Callable

from gpuwarden_cli.top.request import (
    Answer,
    GpuAnswer,
    GpuRequest,
    Request,
    Row,
    RowsAnswer,
    RowsRequest,
    SourceError,
    TopView,
    WhyAnswer,
    WhyRequest,
)

TOTALS = {
    "gpus": 10_000, "reporting": 9_800, "busy": 8_000, "idle": 1_000, "throttled": 10, "unknown": 5, "nodes": 1_250,
    "util_percent": 61.5, "power_watts": 5_120_000.0, "usd_per_hour": 29_500.0, "usd_wasted_per_hour": 2_950.0,
    "alerts": 63, "critical": 32, "at": "12:00:00 UTC", "simulated": True,
}  # fmt: skip


def gpu(number: int, **more: object) -> Row:
    """Row of a GPU: eight on each node."""
    node, index = f"gpu-{number // 8:05d}", number % 8
    return {
        "node": node, "gpu": index, "gpu_uuid": f"GPU-{number}", "place": f"{node}/{index}", "state": "busy",
        "util_percent": float(number % 100), "memory_percent": 40.0, "power_watts": 512.0, "temperature_celsius": 61.0,
        "usd_per_hour": 2.95, "usd_wasted": 0.0, "username": f"user{number % 7}", "job": str(70_000 + number // 8),
        "model": "NVIDIA H100", "level": 0, **more,
    }  # fmt: skip


class FakeSource:
    """So many GPUs; `problem` is raised while it is set."""

    name, node = "http://collector:8750", None

    def __init__(self, gpus: int = 10_000, change: Callable[[Row], Row] = lambda row: row) -> None:
        self.gpus = gpus
        self.change = change
        self.asked: list[Request] = []
        self.problem: BaseException | None = None
        self.ran = False

    async def run(self) -> None:
        self.ran = True

    async def ask(self, request: Request) -> Answer:
        self.asked.append(request)
        if self.problem is not None:
            raise self.problem
        match request:
            case WhyRequest(name):
                return WhyAnswer(
                    [f"{name}: LOADER_WORKERS", "  Too few workers.", "  What to do: more."]
                )
            case GpuRequest(uuid, bins):
                row = self.change(gpu(int(uuid.removeprefix("GPU-"))))
                process = {"pid": 77, "username": "bob", "job": "9", "memory_bytes": 2**34, "cpu_percent": 99.0,
                           "age_s": 4000, "command": "python train.py"}  # fmt: skip
                alert = {"severity": "critical", "rule": "gpu_hung", "summary": "It hangs.", "age_s": 60, "usd": 3.0}  # fmt: skip
                half = [None] * (bins // 2) + [50.0] * (bins - bins // 2)
                return GpuAnswer(TOTALS, row, {"util_percent": half}, [process], [alert])
            case RowsRequest():
                return self._rows(request)

    def _rows(self, request: RowsRequest) -> RowsAnswer:
        if request.view is TopView.NODES:
            rows = [
                {"node": f"gpu-{n:05d}", "state": "reports", "gpus": 8, "alerts": 0}
                for n in range(self.gpus // 8)
            ]
        elif request.view is TopView.GPUS:
            places = range(request.offset, min(self.gpus, request.offset + request.limit))
            if request.node is None and not request.text:
                return RowsAnswer(TOTALS, [self.change(gpu(n)) for n in places], self.gpus)
            rows = [self.change(gpu(n)) for n in range(self.gpus)]
            rows = [
                r for r in rows if request.node in (None, r["node"]) and request.text in r["place"]
            ]
        else:
            rows = []
        return RowsAnswer(TOTALS, rows[request.offset :][: request.limit], len(rows))


def unreachable() -> SourceError:
    """As when a collector is started again."""
    return SourceError("no collector answers at http://collector:8750")
