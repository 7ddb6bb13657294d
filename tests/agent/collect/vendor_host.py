"""A host whose vendors' tools are scripts of ours, and texts that such tools could print."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import Host
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator.devices.vendors import SOURCES


class VendorHost:
    """Device files and tools below a folder; what a tool prints is in files there, the first is `answer`."""

    def __init__(self, folder: Path, clock: ManualClock, **more: str) -> None:
        self.folder = folder
        folders = (folder / "sys", folder / "dev", folder / "proc")
        self.host = Host(clock, "n1", self.which, *folders, **more)

    def device(self, *names: str) -> None:
        (self.folder / "dev").mkdir(exist_ok=True)
        for name in names:
            (self.folder / "dev" / name).touch()

    def tool(self, name: str, body: str) -> None:
        """A program; `ANSWER` is the text that it has to print, `said(name)` that of another file."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time\n"
            f"said = lambda name: open({str(self.folder)!r} + '/' + name).read()\n"
            f"ANSWER = said('answer')\n{body}\n"
        )
        path.chmod(0o755)

    def answers(self, document: Any, name: str = "answer") -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        (self.folder / "new").write_text(text)
        os.replace(self.folder / "new", self.folder / name)

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


def json_with(*keys: str) -> st.SearchStrategy[Any]:
    """Documents of any shape with these keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=6)
        ),
        max_leaves=20,
    )


def texts_with(*keys: str) -> st.SearchStrategy[str]:
    """JSON of any shape with these keys, and what is none."""
    return json_with(*keys).map(json.dumps) | st.text(max_size=200)
