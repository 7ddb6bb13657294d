"""A host whose vendors' tools are scripts of ours."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import Host
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator.devices.vendors import SOURCES


class VendorHost:
    """Device files and tools below a folder; each tool prints or writes the contents of `answer`."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder = folder
        self.host = Host(clock, "n1", self.which, folder / "sys", folder / "dev", folder / "proc")

    def device(self, *names: str) -> None:
        (self.folder / "dev").mkdir(exist_ok=True)
        for name in names:
            (self.folder / "dev" / name).touch()

    def tool(self, name: str, body: str) -> None:
        """A program; `ANSWER` is the text that it has to print."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        answer = str(self.folder / "answer")
        path.write_text(
            f"#!{sys.executable}\nimport sys\nANSWER = open({answer!r}).read()\n{body}\n"
        )
        path.chmod(0o755)

    def answers(self, document: Any) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        (self.folder / "new").write_text(text)
        os.replace(self.folder / "new", self.folder / "answer")

    def which(self, name: str) -> str | None:
        path = self.folder / "bin" / name
        return str(path) if path.exists() else None


def is_what_the_simulator_tells(backend: str, reading: Reading, gpus: Sequence[Row] = ()) -> None:
    """The simulator's nodes of a source have the columns that its probe reads; what the probe reads is given."""
    (source,) = (one for one in SOURCES if one.backend == backend)
    identity = {"gpu", "gpu_uuid"}
    assert set(reading) - {"events"} == set(source.tables)
    for table, columns in source.tables.items():
        assert {name for row in reading[table] for name in row} - identity == set(columns), table
    if gpus:
        assert set(source.inventory) <= {name for row in gpus for name in row}
