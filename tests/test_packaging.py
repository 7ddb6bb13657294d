"""The built wheel holds every module and data file, and installs `gpuwarden*` names only."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "gpuwarden": "contract",
    "gpuwarden_agent": "agent",
    "gpuwarden_simulator": "simulator",
    "gpuwarden_collector": "collector",
    "gpuwarden_postgres": "postgres",
    "gpuwarden_prometheus": "prometheus",
    "gpuwarden_rules": "rules",
    "gpuwarden_dashboards": "dashboards",
    "gpuwarden_client": "client",
    "gpuwarden_importing": "importing",
    "gpuwarden_cli": "cli",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_has_exactly_the_files_of_the_tree(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT / part))
        for package, part in PACKAGES.items()
        for path in (ROOT / part / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == expected
    assert any(name.endswith("views.sql") for name in held)
    assert any(name.endswith(".test.yaml") for name in held)


def test_the_wheel_installs_only_our_names(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_installed_command_runs_away_from_the_checkout(wheel, tmp_path) -> None:
    """Unpacked alone on the path, as pip would lay it out, with nothing of the checkout beside it."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import gpuwarden.schema, gpuwarden_rules.definition.language as language, gpuwarden_cli.main as main\n"
        f"assert language.__file__.startswith({str(site)!r})\n"
        "gpuwarden.schema.views_sql()\n"
        "sys.exit(main.main(['rules', 'list', '--format', 'csv']) or main.main(['grafana', 'export', 'grafana']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rule,severity,")
    assert (tmp_path / "grafana/dashboards/gpuwarden/fleet.json").is_file()
