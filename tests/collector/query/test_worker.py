"""The memory of a query process follows from the settings, or else from the machine."""

from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.query.worker import IDLE_BYTES, limits, machine_bytes, size_bytes

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * MIB),
        ("1.5 gb", 1_500_000_000),
        ("100 K", 100_000),
        ("7B", 7),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes_are_read_as_duckdb_reads_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


def test_what_is_no_size_is_refused_with_an_example() -> None:
    with pytest.raises(StartError, match="query_memory_limit is '80%': give a size such as 512MiB"):
        limits("80%")


def test_a_chosen_limit_is_kept_and_the_kernel_s_follows() -> None:
    assert limits("400MiB") == ("400MiB", IDLE_BYTES + 1000 * MIB)
    memory, data_bytes_max = limits(None)
    assert 64 * MIB <= size_bytes(memory) <= 1024 * MIB
    assert data_bytes_max == IDLE_BYTES + size_bytes(memory) * 5 // 2


def test_a_control_group_has_less_than_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:  8388608 kB\n")
    assert machine_bytes(tmp_path) == 8 << 30
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    group = tmp_path / "sys/fs/cgroup/a"
    (group / "b").mkdir(parents=True)
    (group / "b/memory.max").write_text("max\n")
    assert machine_bytes(tmp_path) == 8 << 30
    (group / "memory.max").write_text("1073741824\n")
    assert machine_bytes(tmp_path) == 1 << 30
    (tmp_path / "proc/self/cgroup").write_text("7:cpu,memory:/c\n")
    (tmp_path / "sys/fs/cgroup/memory/c").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/c/memory.limit_in_bytes").write_text("536870912\n")
    assert machine_bytes(tmp_path) == 512 * MIB
