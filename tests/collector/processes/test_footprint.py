"""Each process of a collector imports only what it needs: a module costs memory."""

import subprocess
import sys

import pytest

UNWANTED = {
    "ingest": (
        (
            "import gpuwarden_cli.composition.collector, gpuwarden_collector.daemon, gpuwarden_rules.evaluation.engine,"
            " gpuwarden_rules.diagnosis.service, gpuwarden_dashboards.routes"
        ),
        (
            "pandas",
            "apprise",
            "cryptography",
            "prometheus_client",
            "pyarrow.dataset",
            "pyarrow.parquet",
            "requests",
        ),
    ),
    "storage and queries": (
        (
            "import pyarrow.compute, pyarrow.dataset, gpuwarden_collector.storage.process,"
            " gpuwarden_collector.query.worker"
        ),
        ("pandas", "apprise", "cryptography", "aiohttp", "yaml", "gpuwarden_rules"),
    ),
}


@pytest.mark.slow
def test_processes_load_only_what_they_need() -> None:
    """As installed here, pandas included, which Arrow would import."""
    for process, (imports, names) in UNWANTED.items():
        code = (
            "from gpuwarden_collector.processes.footprint import keep_small; keep_small()\n"
            f"{imports}\n"
            "import sys, pyarrow as pa; pa.array([1])\n"
            f"print([n for n in {names} if n in sys.modules])"
        )
        command = [sys.executable, "-c", code]
        out = subprocess.run(command, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == "[]", process
