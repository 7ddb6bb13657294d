from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpuwarden_agent.probe import Row
from gpuwarden_simulator.recordings.format import (
    Described,
    Ended,
    Entry,
    RecordedProbe,
    RecordingHeader,
    Samples,
    encode_block,
)

START_MS = 1_795_278_700_000


@pytest.fixture
def write_recording(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recording of two minutes, a GPU for each scenario, all busy for the same share."""

    def write(
        name: str, scenarios: tuple[str, ...], util: float, process: Mapping[str, object]
    ) -> Path:
        probes = [f"gpu{index}:{scenario}" for index, scenario in enumerate(scenarios)]
        entries: list[Entry] = [Described(START_MS, "host", {"nodes": [{"cpus": 16}]})]
        for index, probe in enumerate(probes):
            gpu: Row = {"gpu_uuid": f"GPU-{index}", "gpu": index, "model": "NVIDIA H100"}
            entries.append(Described(START_MS, probe, {"gpus": [gpu]}))
        for second in range(128):
            ts_ms = START_MS + 1000 * second
            for index, probe in enumerate(probes):
                row: Row = {"gpu": index, "gpu_uuid": f"GPU-{index}", "util_percent": util}
                row |= {"power_watts": 500.0 * util / 100, "power_limit_watts": 700.0}
                entries.append(Samples(ts_ms, probe, {"gpu_samples": [row]}))
            host: Row = {"cpu_util_percent": 20.0, "cpu_iowait_percent": 0.0}
            entries.append(Samples(ts_ms, "host", {"host_samples": [host]}))
            if second % 10 == 0:
                rows: list[Row] = [
                    {
                        "gpu": index, "gpu_uuid": f"GPU-{index}", "pid": 100 + index,
                        "started_at": START_MS - 20_000, "username": "ann", "cgroup": "/secret",
                        "command": f"/somewhere/python jobs.py {index}", "process_name": "python",
                        "gpu_memory_bytes": 1 << 34, "state": "S", "read_chars_total": 10**8 * second,
                        **process,  # type: ignore[dict-item]
                    }
                    for index in range(len(probes))
                ]  # fmt: skip
                entries.append(Samples(ts_ms, "processes", {"process_samples": rows}))
        entries.append(Ended(START_MS + 127_000, 128, 0))
        recorded = tuple(RecordedProbe(probe, {"gpu_samples": 1}, None) for probe in probes)
        header = RecordingHeader(
            gpuwarden="0", node=name, started_at="2026-01-01T00:00:00Z", interval_s=1.0, label=name,
            has_identity=True, probes=recorded,
        )  # fmt: skip
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(encode_block(entries, header))
        return path

    return write
