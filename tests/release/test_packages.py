"""Packages are those of the lock, for the Python and machine that the bundle is for."""

import importlib.metadata
import subprocess
import sys

import packages
import pytest
from packages import HERE, LEFT_OUT, Target
from packaging.utils import canonicalize_name
from paths import ROOT
from tests.release.wheels import make_wheel, own_wheel

LOCK = """\
aiohttp==3.14.5 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via gpuwarden (pyproject.toml)
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:cc
    # via pandas
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
    # via pandas
"""


def test_a_gpu_host_gets_no_database_and_a_collector_gets_its_extensions() -> None:
    agent, collector = (packages.closure(packages.EXTRAS[part]) for part in ("agent", "collector"))
    assert "nanoarrow" in agent and "backports-zstd" in agent & collector and "yarl" in agent
    assert not [n for n in agent if n.startswith("duckdb") or n in {"numpy", "pandas", "pyarrow"}]
    assert {"duckdb", "duckdb-extension-httpfs", "duckdb-extension-ducklake"} <= collector


@pytest.mark.parametrize(
    ("extras", "imported"),
    [
        (packages.EXTRAS["agent"], ("gpuwarden", "gpuwarden_agent")),
        (packages.EXTRAS["agent"], ("gpuwarden_simulator",)),
        (
            packages.EXTRAS["collector"],
            ("gpuwarden", "gpuwarden_collector", "gpuwarden_rules", "gpuwarden_dashboards"),
        ),
        (
            packages.EXTRAS["agent"] + packages.EXTRAS["collector"],
            ("gpuwarden_cli", "gpuwarden_client", "gpuwarden_importing"),
        ),
    ],
)
def test_what_is_imported_is_in_the_bundle(extras, imported) -> None:
    """A package that only the tests bring would be missing on a host."""
    code = (
        # Arrow imports pandas where it is installed, and does without.
        "import sys; from gpuwarden_collector.processes.footprint import keep_small; keep_small()\n"
        "before = {*sys.modules}\n"
        "import importlib, pkgutil\n"
        f"for package in map(importlib.import_module, {imported!r}):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = importlib.metadata.packages_distributions()
    used = {canonicalize_name(d) for top in done.stdout.split() for d in known.get(top, ())}
    # Commands that are extras say how to get them. psutil reads hosts other than Linux, which no bundle is for.
    asked_for = packages.closure(("mcp", "top")) | {"gpuwarden", "psutil"}
    assert used - packages.closure(extras) - asked_for == set()


def test_the_lock_is_read_by_name_with_the_marker_that_holds_there() -> None:
    older, newer = (
        packages.locked({"numpy", "aiohttp"}, LOCK, Target(python, "x86_64"))
        for python in ("3.11", "3.13")
    )
    assert list(newer) == ["aiohttp", "numpy"]
    assert newer["aiohttp"].splitlines()[1:] == ["    --hash=sha256:aa \\", "    --hash=sha256:bb"]
    assert "sha256:dd" in newer["numpy"] and "sha256:cc" in older["numpy"]
    # pip would judge a marker by the Python that runs it.
    assert ";" not in newer["numpy"]
    with pytest.raises(SystemExit, match=r"lacks duckdb: run `make lock`"):
        packages.locked({"duckdb"}, LOCK)


@pytest.mark.parametrize("target", [HERE, Target("3.13", "x86_64"), Target("3.13", "aarch64")])
def test_the_lock_has_every_package_of_every_bundle(target) -> None:
    for extras in packages.EXTRAS.values():
        packages.locked(packages.closure(extras, target), packages.LOCK.read_text(), target)


def test_what_runs_is_a_part_of_what_development_installs_and_of_the_same_versions() -> None:
    """`make up` and `make test` share an environment: the second adds, and changes nothing."""
    lock = (ROOT / "requirements.lock").read_text()
    names = packages.closure(("agent", "collector"))
    runs, development = (packages.locked(names, text) for text in (lock, packages.LOCK.read_text()))
    assert runs == development
    for name in ("moto", "mypy", "pandas", "pytest", "duckdb-extension-httpfs"):
        with pytest.raises(SystemExit, match="lacks"):
            packages.locked({name}, lock)


def test_wheels_are_asked_for_that_run_on_the_oldest_glibc() -> None:
    flags = Target("3.13", "x86_64").pip_flags
    platforms = {f.partition("=")[2] for f in flags if f.startswith("--platform=")}
    assert {"manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64"} <= platforms
    assert "manylinux_2_34_x86_64" not in platforms
    assert {"--abi=cp313", "--abi=abi3", "--abi=none"} <= {*flags}


def test_a_wheel_is_laid_out_without_what_nobody_loads(tmp_path) -> None:
    files = {
        "one/__init__.py": "",
        "one/tests/test_one.py": "",
        "pyarrow/include/arrow.h": "",
        "pyarrow/libarrow_flight.so": "",
        "pyarrow/lib.so": "",
        "one-1.0.data/purelib/two.py": "",
        "one-1.0.data/scripts/one": "",
    }
    packages.lay_out([make_wheel(tmp_path, "one", files)], tmp_path / "site")
    site = tmp_path / "site"
    assert {str(p.relative_to(site)) for p in site.rglob("*") if p.is_file()} == {
        "one/__init__.py", "pyarrow/lib.so", "two.py",
        "one-1.0.dist-info/METADATA", "one-1.0.dist-info/WHEEL",
    }  # fmt: skip


def test_a_gpu_host_gets_our_wheel_without_the_simulator(tmp_path) -> None:
    wheel = own_wheel(tmp_path)
    for part, left_out in LEFT_OUT.items():
        packages.lay_out([wheel], tmp_path / part, left_out)
        assert (tmp_path / part / "gpuwarden/a.py").exists()
    assert not (tmp_path / "agent/gpuwarden_simulator").exists()
    assert (tmp_path / "collector/gpuwarden_simulator").exists()


def test_a_wheel_that_is_not_what_its_record_says_is_refused(tmp_path) -> None:
    bad = make_wheel(tmp_path, "one", {"one.py": "GOOD"}, one="EVIL")
    with pytest.raises(SystemExit, match="one-1.0-py3-none-any.whl: .*remove it"):
        packages.lay_out([bad], tmp_path / "site")
    assert not (tmp_path / "site").exists()
