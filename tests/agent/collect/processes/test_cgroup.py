"""Limits of control groups: version 2, version 1, both at once, and what a container sees of them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.collect.processes.cgroup import (
    V2,
    CgroupFs,
    CgroupLimits,
    CgroupMount,
    cpu_max,
    folders_of,
    keyed,
    limits_of,
    main_path,
    number,
    parse_mounts,
    parse_paths,
    read_text,
)

GIB = 1 << 30
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
broken
"""


def test_mounts_of_both_versions_are_found() -> None:
    mounts = parse_mounts(V1_MOUNTS)
    assert mounts["cpu"] == CgroupMount("/sys/fs/cgroup/cpu,cpuacct", "/")
    assert mounts["memory"].folder == "/sys/fs/cgroup/memory"
    assert mounts[V2].folder == "/sys/fs/cgroup/unified"


def test_a_mount_with_a_blank_in_its_name() -> None:
    (mount,) = parse_mounts("1 2 0:3 / /a\\040b rw - cgroup2 none rw").values()
    assert mount.folder == "/a b"


def test_each_controller_has_its_path_and_rubbish_has_none() -> None:
    paths = parse_paths("4:cpu,cpuacct:/slurm/job_1\n3:memory:/m:x\n0::/\nrubbish\n")
    assert paths == {"cpu": "/slurm/job_1", "cpuacct": "/slurm/job_1", "memory": "/m:x", V2: "/"}


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/system.slice/x.service\n", "/system.slice/x.service"),
        ("3:memory:/slurm/job_1\n0::/\n", "/slurm/job_1"),
        ("3:memory:/\n0::/\n", "/"),
        ("", None),
    ],
)
def test_the_main_path_is_that_of_version_1_where_there_is_one(
    cgroup: str, path: str | None
) -> None:
    assert main_path(parse_paths(cgroup)) == path


@pytest.mark.parametrize(
    ("path", "root", "folders"),
    [
        ("/a/b", "/", ["/cg/a/b", "/cg/a", "/cg"]),
        ("/", "/", ["/cg"]),
        ("/docker/x/y", "/docker/x", ["/cg/y", "/cg"]),
        ("/../../a", "/../..", ["/cg/a", "/cg"]),  # the host's hierarchy seen from a namespace
        ("/../a", "/", []),  # above what the mount shows
        ("/a", "/b", []),
    ],
)
def test_folders_from_a_group_up_to_what_the_mount_shows(
    path: str, root: str, folders: list[str]
) -> None:
    assert folders_of(path, CgroupMount("/cg", root)) == folders


@given(st.text(max_size=30))
def test_rubbish_in_a_control_group_is_read_as_null(text: str) -> None:
    value = number(text)
    assert value is None or str(value) == text.strip().lstrip("0") or value == 0
    keyed(text, "throttled_usec")
    cpu_max(text)
    parse_paths(text)
    parse_mounts(text)


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_smallest_limit_up_the_tree_holds(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "job/cpu.max": "800000 100000",
            "job/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n",
            "job/memory.max": f"{64 * GIB}",
            "job/memory.current": f"{60 * GIB}",
            "job/step/cpu.max": "max 100000",
            "job/step/memory.max": f"{64 * GIB}",
            "job/step/memory.current": f"{1 * GIB}",
            "job/step/task/memory.max": "max",
        },
    )
    mounts = {V2: CgroupMount(str(tmp_path), "/")}
    # Job and step have the same limit: the job's is reached first.
    assert limits_of({V2: "/job/step/task"}, mounts, read_text) == CgroupLimits(
        8.0, 2.5, 64 * GIB, 60 * GIB
    )


def test_without_a_limit_only_what_is_used_is_told(tmp_path: Path) -> None:
    plant(tmp_path, {"a/cpu.max": "max 100000", "a/memory.max": "max\n", "a/memory.current": "7\n"})
    mounts = {V2: CgroupMount(str(tmp_path), "/")}
    assert limits_of({V2: "/a"}, mounts, read_text) == CgroupLimits(memory_used_bytes=7)


def test_limits_of_version_1_count_beside_an_empty_version_2(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "cpu/j/cpu.cfs_quota_us": "400000",
            "cpu/j/cpu.cfs_period_us": "100000",
            "cpu/j/cpu.stat": "nr_periods 1\nthrottled_time 1500000000\n",
            "memory/j/memory.limit_in_bytes": "9223372036854771712",
            "memory/j/memory.usage_in_bytes": "12",
            "unified/cpu.max": "100 100",
        },
    )
    mounts = {name: CgroupMount(str(tmp_path / name), "/") for name in ("cpu", "memory")}
    mounts[V2] = CgroupMount(str(tmp_path / "unified"), "/")
    paths = {"cpu": "/j", "memory": "/j", V2: "/"}
    assert limits_of(paths, mounts, read_text) == CgroupLimits(4.0, 1.5, None, 12)


def test_groups_that_are_gone_or_not_shown_tell_nothing(tmp_path: Path) -> None:
    mounts = {V2: CgroupMount(str(tmp_path), "/")}
    assert limits_of({V2: "/gone"}, mounts, read_text) == CgroupLimits()
    assert limits_of({V2: "/../x", "cpu": "/y"}, mounts, read_text) == CgroupLimits()
    assert limits_of({}, {}, read_text) == CgroupLimits()


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="no control groups")
def test_this_process_is_within_what_the_kernel_says() -> None:
    limits = CgroupFs().limits(parse_paths(Path("/proc/self/cgroup").read_text()))
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.memory_used_bytes is None or 0 < limits.memory_used_bytes < 2 * host
    assert limits.cpu_cores is None or limits.cpu_cores > 0


def test_without_a_proc_no_group_is_found(tmp_path: Path) -> None:
    assert CgroupFs(tmp_path / "mountinfo").limits({V2: "/a"}) == CgroupLimits()
