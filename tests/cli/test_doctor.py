"""`gpuwarden agent doctor` prints both tables and exits by what was found."""

import json
import subprocess
import sys
from pathlib import Path

from gpuwarden_agent.doctor import Call, Check
from gpuwarden_agent.probes.timing import CallReport
from gpuwarden_cli.doctor import rendered

CALL = Call(
    "gpu0", CallReport("nvmlX", "power_usage_mw", False, "NOT_SUPPORTED", 0.0123, None, 9, 10)
)
CHECK = Check("kernel_log", "degraded", "may not be read", "give it CAP_SYSLOG")


def test_people_get_what_is_wrong_first_and_then_the_calls() -> None:
    text = rendered([CHECK], [CALL], "table")
    assert "degraded  may not be read; give it CAP_SYSLOG" in text
    line = text.splitlines()[-1].split()
    assert line == [
        "nvmlX",
        "power_usage_mw",
        "gpu0",
        "no",
        "NOT_SUPPORTED",
        "0.012",
        "–",
        "10",
        "s",
    ]


def test_programs_get_both_tables_or_the_calls() -> None:
    made = json.loads(rendered([CHECK], [CALL], "json"))
    assert made["checks"][0]["remedy"] == "give it CAP_SYSLOG"
    assert made["calls"][0] | {"source": "gpu0", "code": "NOT_SUPPORTED"} == made["calls"][0]
    assert rendered([CHECK], [CALL], "csv").startswith("call,reading,source,")


def test_without_a_collector_it_exits_1_and_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("gpuwarden"), "agent", "doctor", "--state-dir", tmp_path,
         "--backend", "simulator", "--collector-url", "http://127.0.0.1:1", "--format", "json"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    checks = {c["name"]: c["status"] for c in json.loads(done.stdout)["checks"]}
    assert (done.returncode, checks["collector"], checks["host"]) == (1, "failed", "ok")
