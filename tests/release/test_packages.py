"""Packages are those of the lock, for the Python and machine that the bundle is for."""

import importlib.metadata
import re
import subprocess
import sys

import packages
import pytest
from packages import HERE, LEFT_OUT, LOCK, Target
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT
from tests.release.wheels import own_wheel


def closure(extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that these extras of gpuwarden need here."""
    queue = [("gpuwarden", extra) for extra in extras]
    found: set[tuple[str, str]] = set()
    while queue:
        name, extra = one = queue.pop()
        if one in found:
            continue
        found.add(one)
        for wanted in map(Requirement, importlib.metadata.requires(name) or []):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                queue += [(canonicalize_name(wanted.name), of) for of in ("", *wanted.extras)]
    return {name for name, _ in found}


def test_a_gpu_host_gets_no_database_and_a_collector_gets_its_extensions() -> None:
    agent, collector = (closure(packages.EXTRAS[part]) for part in ("agent", "collector"))
    assert "nanoarrow" in agent and "backports-zstd" in agent & collector and "yarl" in agent
    assert not [n for n in agent if n.startswith("duckdb") or n in {"numpy", "pandas", "pyarrow"}]
    assert {"duckdb", "duckdb-extension-httpfs", "duckdb-extension-ducklake"} <= collector


@pytest.mark.parametrize(
    ("extras", "imported"),
    [
        (packages.EXTRAS["agent"], ("gpuwarden", "gpuwarden_agent", "gpuwarden_simulator")),
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
    asked_for = closure(("mcp", "top")) | {"gpuwarden", "psutil"}
    assert used - closure(extras) - asked_for == set()


def test_what_runs_is_a_part_of_what_development_installs_and_of_the_same_versions() -> None:
    """`make up` and `make test` share an environment: the second adds, and changes nothing."""
    development = hashes(LOCK.read_text())
    runs = hashes((ROOT / "requirements.lock").read_text())
    assert runs.items() <= development.items()
    assert not {"moto", "mypy", "pandas", "pytest", "duckdb-extension-httpfs"} & {
        canonicalize_name(pin.partition("==")[0]) for pin in runs
    }


def hashes(lock: str) -> dict[str, str]:
    """The hashes of each pin of a lock."""
    pins = re.split(
        r"^(?=\S)", re.sub(r"^ *#.*\n?", "", lock, flags=re.MULTILINE), flags=re.MULTILINE
    )
    return {pin.split()[0]: "".join(sorted(re.findall(r"sha256:\w+", pin))) for pin in pins if pin}


@pytest.mark.slow
def test_packages_are_those_of_the_lock_for_another_python_and_machine(tmp_path) -> None:
    target = Target("3.13", "aarch64")
    versions = packages.install_packages("agent", target, tmp_path)
    pins = hashes(LOCK.read_text())
    assert {f"{name}=={version}" for name, version in versions.items()} <= pins.keys()
    assert "nanoarrow" in versions
    assert any(tmp_path.rglob("*cpython-313-aarch64-linux-gnu.so"))
    left = {path.name for path in tmp_path.rglob("*")}
    assert "METADATA" in left and not {"RECORD", "INSTALLER", "bin", "tests"} & left


@pytest.mark.slow
def test_a_package_that_is_not_the_locked_one_is_refused(tmp_path) -> None:
    text = LOCK.read_text()
    start = text.index("\nnanoarrow==")
    end = text.index("# via", start)
    other = re.sub("sha256:.{6}", "sha256:000000", text[start:end])
    (tmp_path / "lock").write_text(text[:start] + other + text[end:])
    with pytest.raises(SystemExit, match="(?s)Hash mismatch.*nanoarrow"):
        packages.install_packages("agent", HERE, tmp_path / "site", lock=tmp_path / "lock")


def test_a_gpu_host_gets_our_wheel_without_the_simulator(tmp_path) -> None:
    wheel = own_wheel(tmp_path)
    for part in LEFT_OUT:
        packages.install_wheel(part, tmp_path / part, wheel)
        assert (tmp_path / part / "gpuwarden/a.py").exists()
    assert not (tmp_path / "agent/gpuwarden_simulator").exists()
    assert (tmp_path / "collector/gpuwarden_simulator").exists()
    assert {path.name for path in (tmp_path / "agent").glob("*.dist-info/*")} == {
        "METADATA",
        "WHEEL",
    }
