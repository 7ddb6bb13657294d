"""A running agent takes up new settings on SIGHUP; a collector's doctor says what a person should do."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_an_agent_goes_on_with_new_settings_and_keeps_the_old_when_they_are_wrong(
    world: Any, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"

    def write(url: str, more: str = "") -> None:
        config.write_text(
            f'backend = "simulator"\nnode = "n1"\nsimulate_gpus = 1\nbatch_s = 1\n'
            f'collector_url = "{url}"\nstate_dir = "{tmp_path / "state"}"\n{more}'
        )

    def lines(words: str) -> list[str]:
        return [line for line in agent.output.splitlines() if words in line]

    write("http://127.0.0.1:1")
    agent = world.start("agent", "run", "--config", str(config))
    world.wait_for(lambda: lines("collector takes no batches"), "it is away", agent)
    write(world.url, "prot = 1\n")
    agent.popen.send_signal(signal.SIGHUP)
    world.wait_for(lambda: lines("not reloaded"), "the wrong file is reported", agent)
    assert "unknown setting 'prot'" in lines("not reloaded")[0]

    collector = world.collector()
    write(world.url, "interval_s = 2.0\n")
    agent.popen.send_signal(signal.SIGHUP)
    count = "select count(*) from gpu_samples"
    world.wait_for(lambda: (world.one(count) or 0) >= 3, "what was spooled arrives", agent)
    assert lines("needs a restart")[0].endswith("settings=interval_s")
    found = world.run("collector", "doctor", "--port", str(world.port), "--data-dir",
                      str(world.folder / "store"), "--format", "json")  # fmt: skip
    checks = {c["name"]: c for c in json.loads(found.stdout)["checks"]}
    assert {checks[n]["status"] for n in ("collector", "store", "http", "version")} == {"ok"}
    assert checks["agents"]["finding"] == "1 sent within the last minute"

    assert agent.stop() == 0
    (rows, seconds) = world.ask("select count(*), count(distinct ts) from gpu_samples")[0]
    assert rows == seconds
    assert collector.stop() == 0
