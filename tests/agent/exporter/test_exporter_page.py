"""The table of names in `docs/exporter.md` is what the code exports."""

import importlib.util
from pathlib import Path
from types import ModuleType

from gpuwarden.metrics import METRICS
from gpuwarden_agent.exporter.names import NAME_SETS, names_of

ROOT = Path(__file__).parents[3]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exporter", ROOT / "docs" / "exporter.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "exporter.md").read_text()
    assert page == generator().exporter_page(), "run `python -m docs.exporter`"


def test_every_name_is_on_the_page() -> None:
    tables = generator().names_tables()
    names = [e.name for s in NAME_SETS for table in METRICS for e in names_of(s, table)]
    assert [name for name in names if f"`{name}`" not in tables] == []
