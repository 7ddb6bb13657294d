"""What prolog and epilog note of Slurm's jobs, by the scripts themselves, and the agent's rows of it."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuwarden_agent.collect.processes.cgroup import CgroupMount
from gpuwarden_agent.collect.schedulers.allocations import noted_jobs
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.slurm_jobs import SlurmJobProbe
from gpuwarden_agent.collect.schedulers.slurm_notes import SlurmNotes, parse_note
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_cli.slurm.install import NOTES, script_text

PROLOG = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "2001",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "batch",
    "SLURM_NODELIST": "gpu[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_JOB_GPUS": "0,2",
    "CUDA_VISIBLE_DEVICES": "0,2",
}
"""As Slurm 22.05 has them."""
GPUS = {
    "00000000:18:00.0": (0, "GPU-a"),
    "00000000:2A:00.0": (1, "GPU-b"),
    "00000000:3A:00.0": (2, "GPU-c"),
}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def script(part: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the script as slurmd does: without a search path."""
    text = script_text(part).replace(f"notes={NOTES}", f"notes={folder}")
    return subprocess.run(
        ["/bin/sh", "-c", text], env=env, capture_output=True, text=True, check=False, timeout=10
    )


def probe(folder: Path, mounts: dict[str, CgroupMount] | None = None) -> SlurmJobProbe:
    return SlurmJobProbe(
        SlurmNotes(folder), GpuNames(GPUS, folder), mounts=mounts or {}, name_of=str
    )


def rows(made: SlurmJobProbe, ts_ms: int = 1_000) -> list[Row]:
    return list(made.read(ts_ms)["slurm_job_samples"])


def test_a_job_is_a_row_when_it_begins_and_when_it_ends(notes: Path) -> None:
    made = probe(notes)
    assert rows(made) == []
    assert script("Prolog", notes, **PROLOG).returncode == 0
    (row,) = rows(made)
    assert row["state"] == "running" and row["gpu_uuids"] == "GPU-a,GPU-c" and row["gpus"] == 2
    assert (row["username"], row["account"], row["partition"]) == ("ada", "physics", "batch")
    assert row["cpus"] == 8 and row["node_list"] == "gpu[1-2]" and "qos" not in row
    assert abs(int(str(row["started_at"])) / 1000 - time.time()) < 10
    assert rows(made) == [], "nothing new"
    script("Epilog", notes, SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="768")
    (row,) = rows(made)
    assert row["state"] == "ended" and row["exit_code"] == 3
    assert int(str(row["ended_at"])) >= int(str(row["started_at"]))


@pytest.mark.parametrize(("status", "code"), [("0", 0), ("256", 1), ("9", 137), ("", None)])
def test_a_signal_is_an_exit_code_from_128_on(notes: Path, status: str, code: int | None) -> None:
    script("Prolog", notes, **PROLOG)
    script("Epilog", notes, SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE=status)
    assert [row.get("exit_code") for row in rows(probe(notes))] == [code]


def test_a_restarted_agent_knows_what_runs_and_what_ended_meanwhile(notes: Path) -> None:
    script("Prolog", notes, **PROLOG)
    script("Prolog", notes, **PROLOG | {"SLURM_JOB_ID": "8"})
    rows(probe(notes))
    script("Epilog", notes, SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="0")
    states = {row["job"]: row["state"] for row in rows(probe(notes))}
    assert states == {"7": "ended", "8": "running"}
    (held,) = noted_jobs(SlurmNotes(notes))()
    assert held.job == "8" and held.gpus == ("0", "2") and held.uid == 2001


def test_a_requeued_job_runs_again(notes: Path) -> None:
    made = probe(notes)
    for part in ("Prolog", "Epilog", "Prolog"):
        script(part, notes, **PROLOG)
        told = rows(made)
        time.sleep(0.02)
    assert [row["state"] for row in told] == ["running"]


def test_a_job_name_cannot_set_another_field(notes: Path) -> None:
    script(
        "Prolog",
        notes,
        **PROLOG | {"SLURM_JOB_NAME": "a\nSLURM_JOB_USER=root|b", "SLURM_JOB_ACCOUNT": "=x"},
    )
    (row,) = rows(probe(notes))
    assert (
        row["username"] == "ada"
        and row["job_name"] == "a\nSLURM_JOB_USER=root|b"
        and row["account"] == "=x"
    )


def no_folder(notes: Path) -> None:
    notes.rmdir()
    notes.parent.joinpath("notes").symlink_to("/nowhere/at/all")


def a_file(notes: Path) -> None:
    notes.rmdir()
    notes.write_text("")


def a_folder_of_that_name(notes: Path) -> None:
    (notes / "7").mkdir()
    (notes / "7.end").mkdir()


@pytest.mark.parametrize("breaks", [no_folder, a_file, a_folder_of_that_name])
@pytest.mark.parametrize("part", ["Prolog", "Epilog"])
def test_scripts_end_well_whatever_is_wrong(notes: Path, breaks, part: str) -> None:
    breaks(notes)
    done = script(part, notes, **PROLOG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "7; touch x", "7a"])
def test_a_job_id_is_a_number(notes: Path, job: str) -> None:
    for part in ("Prolog", "Epilog"):
        assert script(part, notes, **PROLOG | {"SLURM_JOB_ID": job}).returncode == 0
    assert list(notes.parent.rglob("*")) == [notes]


def test_old_ends_go_once_there_are_many(notes: Path) -> None:
    old = time.time() - 2 * 3600
    for job in range(100, 170):
        for name in (f"{job}", f"{job}.end"):
            (notes / name).write_bytes(b".\0")
            os.utime(notes / name, (old, old))
    script("Prolog", notes, **PROLOG)
    script("Epilog", notes, SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="0")
    assert sorted(path.name for path in notes.iterdir()) == ["7", "7.end"]


@pytest.mark.parametrize("content", [b"", b"A=1", b"A=1\0", b"A=1\0.", b".\0more"])
def test_a_note_that_is_not_whole_is_no_job_and_is_counted(notes: Path, content: bytes) -> None:
    assert parse_note(content) is None
    (notes / "7").write_bytes(content)
    (notes / "7x").write_bytes(b".\0")
    seen = SlurmNotes(notes)
    assert seen.look() == {} == seen.look()
    assert seen.failed.total() == 1


def test_a_link_is_not_followed(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"SLURM_JOB_USER=root\0.\0")
    (notes / "7").symlink_to(tmp_path / "elsewhere")
    assert SlurmNotes(notes).look() == {}


def test_a_folder_that_may_not_be_read_is_an_event(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ProbeError, match="notes cannot be read: Permission denied"):
        probe(notes).read(0)


def test_what_a_job_used_is_of_its_control_group_and_stays_after_its_end(
    notes: Path, tmp_path: Path
) -> None:
    group = tmp_path / "cg/system.slice/slurmstepd.scope/job_7"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 12500000\nuser_usec 1\n")
    for name, value in (("current", 2**30), ("peak", 2**31), ("max", 2**33)):
        (group / f"memory.{name}").write_text(f"{value}\n")
    made = probe(notes, {"": CgroupMount(str(tmp_path / "cg"), "/")})
    script("Prolog", notes, **PROLOG)
    (row,) = rows(made, 10_000)
    used = {
        "cpu_seconds_total": 12.5,
        "memory_used_bytes": 2**30,
        "memory_peak_bytes": 2**31,
        "memory_limit_bytes": 2**33,
    }
    assert {name: row[name] for name in used} == used
    for file in group.iterdir():
        file.unlink()
    group.rmdir()
    script("Epilog", notes, SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="0")
    (row,) = rows(made, 20_000)
    assert row["state"] == "ended" and {name: row[name] for name in used} == used


def test_use_of_a_job_is_read_from_control_groups_of_version_1(notes: Path, tmp_path: Path) -> None:
    for controller, files in (
        ("cpuacct", {"cpuacct.usage": 3_000_000_000}),
        (
            "memory",
            {
                "memory.usage_in_bytes": 5,
                "memory.max_usage_in_bytes": 9,
                "memory.limit_in_bytes": 1 << 62,
            },
        ),
    ):
        group = tmp_path / controller / "slurm/uid_2001/job_7"
        group.mkdir(parents=True)
        for name, value in files.items():
            (group / name).write_text(f"{value}\n")
    mounts = {name: CgroupMount(str(tmp_path / name), "/") for name in ("cpuacct", "memory")}
    script("Prolog", notes, **PROLOG)
    (row,) = rows(probe(notes, mounts), 10_000)
    assert row["cpu_seconds_total"] == 3.0 and row["memory_peak_bytes"] == 9
    assert "memory_limit_bytes" not in row
