"""Bundles hold what the lock says, as the same bytes each time."""

import base64
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import bundle
import pytest
from installer.sources import WheelFile
from packaging.utils import canonicalize_name

LOCK = """\
aiohttp==3.14.5 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via gpuwarden (pyproject.toml)
numpy==2.4.6 ; python_full_version < '3' \\
    --hash=sha256:cc
    # via pandas
numpy==2.5.5 ; python_full_version >= '3' \\
    --hash=sha256:dd
    # via pandas
"""


def test_a_gpu_host_gets_no_database_and_a_collector_gets_its_extensions() -> None:
    agent, collector = (bundle.closure(bundle.EXTRAS[part]) for part in ("agent", "collector"))
    assert "nanoarrow" in agent and "backports-zstd" in agent & collector and "yarl" in agent
    assert not [n for n in agent if n.startswith("duckdb") or n in {"numpy", "pandas", "pyarrow"}]
    assert {"duckdb", "duckdb-extension-httpfs", "duckdb-extension-ducklake"} <= collector


@pytest.mark.parametrize(
    ("extras", "packages"),
    [
        (bundle.EXTRAS["agent"], ("gpuwarden", "gpuwarden_agent")),
        (bundle.EXTRAS["agent"], ("gpuwarden_simulator",)),
        (
            bundle.EXTRAS["collector"],
            ("gpuwarden", "gpuwarden_collector", "gpuwarden_rules", "gpuwarden_dashboards"),
        ),
        (
            bundle.EXTRAS["agent"] + bundle.EXTRAS["collector"],
            ("gpuwarden_cli", "gpuwarden_client"),
        ),
    ],
)
def test_what_is_imported_is_in_the_bundle(extras, packages) -> None:
    """A package that only the tests bring would be missing on a host."""
    code = (
        # Arrow imports pandas where it is installed, and does without.
        "import sys; from gpuwarden_collector.footprint import keep_small; keep_small()\n"
        "before = {*sys.modules}\n"
        "import importlib, pkgutil\n"
        f"for package in map(importlib.import_module, {packages!r}):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = importlib.metadata.packages_distributions()
    used = {canonicalize_name(d) for top in done.stdout.split() for d in known.get(top, ())}
    # Commands that are extras say how to get them. psutil reads hosts other than Linux, which no bundle is for.
    asked_for = bundle.closure(("mcp", "top")) | {"gpuwarden", "psutil"}
    assert used - bundle.closure(extras) - asked_for == set()


def test_the_lock_is_read_by_name_with_the_marker_that_holds_here() -> None:
    found = bundle.locked({"numpy", "aiohttp"}, LOCK)
    assert list(found) == ["aiohttp", "numpy"]
    assert found["aiohttp"].splitlines()[1:] == ["    --hash=sha256:aa \\", "    --hash=sha256:bb"]
    assert "sha256:dd" in found["numpy"] and "sha256:cc" not in found["numpy"]
    with pytest.raises(SystemExit, match=r"lacks duckdb: run `make lock`"):
        bundle.locked({"duckdb"}, LOCK)


def test_the_lock_has_every_package_of_every_bundle() -> None:
    for extras in bundle.EXTRAS.values():
        bundle.locked(bundle.closure(extras), bundle.LOCK.read_text())


def test_what_runs_is_a_part_of_what_development_installs_and_of_the_same_versions() -> None:
    """`make up` and `make test` share an environment: the second adds, and changes nothing."""
    lock = (bundle.ROOT / "requirements.lock").read_text()
    names = bundle.closure(("agent", "collector"))
    runs, development = (
        {name: re.sub(" ;[^\\\\]*", " ", pin) for name, pin in bundle.locked(names, text).items()}
        for text in (lock, bundle.LOCK.read_text())
    )
    assert runs == development
    for name in ("moto", "mypy", "pandas", "pytest", "duckdb-extension-httpfs"):
        with pytest.raises(SystemExit, match="lacks"):
            bundle.locked({name}, lock)


def test_the_same_entries_are_the_same_bytes_and_run(tmp_path) -> None:
    entries = {"b.py": b"WORD = 'runs'\n", "__main__.py": b"import b; print(b.WORD)\n"}
    first, second = tmp_path / "first.pyz", tmp_path / "second.pyz"
    bundle.write_archive(first, entries)
    bundle.write_archive(second, dict(reversed(entries.items())))
    assert first.read_bytes() == second.read_bytes()
    done = subprocess.run([sys.executable, first], capture_output=True, text=True, check=True)
    assert done.stdout == "runs\n"


def test_the_instant_of_the_files_is_source_date_epoch(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    bundle.write_archive(tmp_path / "x.pyz", {"a": b""})
    with zipfile.ZipFile(tmp_path / "x.pyz") as archive:
        assert archive.getinfo("a").date_time == (2023, 11, 14, 22, 13, 20)


def own_wheel(folder: Path) -> Path:
    """A wheel as ours is: two packages, with the record that an installer checks."""
    info = "gpuwarden-1.2.3.dist-info"
    files = {
        "gpuwarden/a.py": b"A = 1\n",
        "gpuwarden_simulator/b.py": b"B = 2\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: gpuwarden\nVersion: 1.2.3\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items())
    path = folder / "gpuwarden-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in (
            files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}
        ).items():
            made.writestr(name, data)
    return path


def digest(data: bytes) -> str:
    found = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


@pytest.mark.parametrize(("part", "has_simulator"), [("agent", False), ("collector", True)])
def test_a_gpu_host_gets_our_wheel_without_the_simulator(tmp_path, part, has_simulator) -> None:
    path = bundle.bundle(part, own_wheel(tmp_path), [], tmp_path)
    with zipfile.ZipFile(path) as archive:
        archive.extract("wheels/gpuwarden-1.2.3-py3-none-any.whl", tmp_path / "out")
    (inner,) = (tmp_path / "out" / "wheels").iterdir()
    with WheelFile.open(inner) as source:
        source.validate_record()
    with zipfile.ZipFile(inner) as wheel:
        names = set(wheel.namelist())
    assert "gpuwarden/a.py" in names
    assert ("gpuwarden_simulator/b.py" in names) is has_simulator


def test_a_bundle_has_the_wheels_the_installer_and_the_files_of_the_host(tmp_path) -> None:
    own, other = own_wheel(tmp_path), tmp_path / "one-1.0-py3-none-any.whl"
    other.write_bytes(b"one")
    path = bundle.bundle("agent", own, [other], tmp_path)
    assert path.name.startswith("gpuwarden-agent-1.2.3-cp3") and path.name.endswith(".pyz")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("manifest.json"))
        unit = archive.read("host/unit").decode()
    assert manifest["wheels"]["one-1.0-py3-none-any.whl"] == hashlib.sha256(b"one").hexdigest()
    assert {"__main__.py", "gpuwarden_installer/plan.py", "installer/__init__.py"} <= names
    assert unit == (Path(bundle.ROOT) / "systemd/gpuwarden-agent.service").read_text()
