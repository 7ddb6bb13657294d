"""Real `gpuwarden` processes on free ports, ended with the test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from bench.this_host import free_port

from gpuwarden_client.http import CallError, ask
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.definition.source import rule_source

COMMAND = Path(sys.executable).with_name("gpuwarden")
DEADLINE_S = 300


class Process:
    """A `gpuwarden` command that runs until it is stopped."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: dict[str, str],
        command: Sequence[str] = (str(COMMAND),),
    ) -> None:
        self.log = folder / f"{'-'.join(words[:2]).replace('/', '-')}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                [*command, *words], cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait(10)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(DEADLINE_S)


class World:
    """What a test starts processes and asks questions with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARDEN_")}
        self.env["GPUWARDEN_URL"] = self.url
        self.processes: list[Process] = []

    def start(self, *words: str) -> Process:
        process = Process(self.folder, *words, env=self.env)
        self.processes.append(process)
        return process

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            [str(COMMAND), *words],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip

    def collector(self, *more: str, has_rules: bool = True) -> Process:
        """A collector on this world's port, ready."""
        if not has_rules:
            self.env["GPUWARDEN_COLLECTOR_RULES_DIRS"] = str(copy_rules(self.folder / "no_rules"))
        store = str(self.folder / "store")
        words = ["collector", "run", "--port", str(self.port), "--data-dir", store]
        process = self.start(*words, *more)
        self.wait_ready(process)
        return process

    def wait_ready(self, process: Process) -> None:
        def ready() -> bool:
            assert process.popen.poll() is None, process.output
            try:
                with urlopen(f"{self.url}/readyz", timeout=2) as answer:
                    return answer.status == 200
            except (URLError, OSError):
                return False

        self.wait_for(ready, "the collector is ready", process)

    def ask(self, sql: str) -> list[tuple]:
        return [tuple(row) for row in ask(sql, url=self.url).rows]

    def one(self, sql: str):
        """The only value of a query; None while the collector does not answer."""
        try:
            return self.ask(sql)[0][0]
        except CallError:
            return None

    def wait_for(
        self,
        condition: Callable[[], bool],
        what: str,
        *shown: Process,
        within_s: float = DEADLINE_S,
    ) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(p.output[-3000:] for p in shown or self.processes)
                pytest.fail(f"not within {within_s:g} s: {what}\n{logs}")
            time.sleep(0.05)


def copy_rules(folder: Path, *names: str, **changed: str) -> Path:
    """Folder with rules of the pack, some keys changed: with it, no other rule is evaluated."""
    folder.mkdir(exist_ok=True)
    disabled = "{rules: ['*'], enabled: false}"
    enabled = [f"{{rules: [{name}], enabled: true}}" for name in names]
    (folder / "overrides.yaml").write_text(f"overrides: [{', '.join([disabled, *enabled])}]\n")
    if not names:
        return folder
    found = {rule.name: rule_source(rule) for rule in builtin_rules() if rule.name in names}
    lines = ["rules:"]
    for name in names:
        text = "\n".join(
            line for line in found[name].splitlines() if not line.startswith(tuple(changed))
        )
        more = "".join(f"\n{key}: {value}" for key, value in changed.items())
        lines.append("  - " + indent(text + more, "    ").lstrip())
    (folder / "copied.yaml").write_text("\n".join(lines))
    return folder


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for process in made.processes:
        if process.popen.poll() is None:
            process.kill()
