"""Documentation that must be true: generated pages are current, links lead somewhere, all is covered."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from bundle import PACKAGES
from docs.generate import PARTS, command_parsers, pages
from docs.generate_tables import NVML_TABLES
from tests.each import each

from gpuwarden import access
from gpuwarden.gpu_test import GPU_TESTS_PATH
from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import NAME_SETS, PREFIXES, names_of
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES
from gpuwarden.wire import INGEST_PATH, VERSION_HEADER, WIRE_VERSION
from gpuwarden.xids import XIDS
from gpuwarden_agent.queue.spool import FORMAT_VERSION as SPOOL_VERSION
from gpuwarden_collector.auth.token_file import VERSION as TOKENS_VERSION
from gpuwarden_collector.ops.readiness import READY_CHECKS
from gpuwarden_collector.storage import segment
from gpuwarden_collector.storage.state import SCHEMA_VERSION
from gpuwarden_dashboards.assets import PATH as ASSETS_PATH
from gpuwarden_rules.notify.json_body import VERSION as BODY_VERSION
from gpuwarden_rules.notify.outbox import FORMAT_VERSION as OUTBOX_VERSION

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
)


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return pages()


def test_a_generated_page_is_what_the_code_says(generated: dict[str, str]) -> None:
    stale = [name for name, text in generated.items() if (ROOT / name).read_text() != text]
    assert not stale, "run `make docs`"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_column_is_described_or_named_in_the_section_of_its_table() -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page("tables.md"), re.DOTALL | re.MULTILINE)
    )
    missing = []
    for table in TABLES.values():
        rollup = ROLLUPS.get(table.name)
        section = sections[(rollup and rollup.made_of) or table.name]
        made = (
            {s.column.name: s.source for p in rollup.parts for s in p.summaries} if rollup else {}
        )
        for name in table.names:
            source = made.get(name, name)
            if f"`{source}`" not in section and not (
                source.endswith("_total") and "every `_total`" in section
            ):
                missing.append(f"{table.name}.{name}")
    assert not missing


def test_the_meaning_of_a_column_stands_once() -> None:
    rows = re.findall(r"^- (`[a-z]\w*`.*: .*)$", page("tables.md"), re.MULTILINE)
    assert len(rows) > 250
    assert sorted({line for line in rows if rows.count(line) > 1}) == []


def test_every_metric_has_its_source_and_every_exported_name() -> None:
    text = " ".join(page("metrics.md").split())
    nvml = page("gpus.md").partition("## Readings of NVML")[2]
    missing = [
        m.name
        for table, metrics in METRICS.items()
        for m in metrics
        if (f"`{m.name}`" not in nvml if table in NVML_TABLES else m.source not in text)
    ]
    own = {e.name: (table, e.columns) for table in METRICS for e in names_of("own", table)}
    units = {"_percent": "_ratio", "_mhz": "_hertz", "_bits": "_bytes"}
    for name, (table, (column,)) in own.items():
        for unit, base in units.items():
            column = column.replace(unit, base)
        if name != f"gpuwarden_{PREFIXES[table]}_{column}":
            missing.append(name)
    names = [e.name for s in NAME_SETS[1:] for table in METRICS for e in names_of(s, table)]
    missing += [name for name in names if f"`{name}`" not in text]
    assert not missing


def test_every_setting_command_and_xid_has_its_entry_once() -> None:
    for part, cls in PARTS.items():
        section = page("configure.md").split(f"\n## {part}\n")[1].split("\n## ")[0]
        assert [f.name for f in fields(cls) if section.count(f"\n- `{f.name}` (") != 1] == []
    titles = re.findall(r"^## (gpuwarden .*)$", page("commands.md"), re.MULTILINE)
    assert titles == [name for name, _ in command_parsers()]
    lists = re.findall(r"^- ([\d, ]+): ", page("xids.md"), re.MULTILINE)
    codes = [int(code) for codes in lists for code in codes.split(", ")]
    assert sorted(codes) == sorted(XIDS)


@each("path", PAGES)
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file) if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert not broken


@cache
def anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_endpoint_is_documented() -> None:
    folders = (
        *("collector/gpuwarden_collector/http", "collector/gpuwarden_collector/auth"),
        *("rules/gpuwarden_rules/http", "dashboards/gpuwarden_dashboards"),
    )
    source = "".join(p.read_text() for folder in folders for p in (ROOT / folder).rglob("*.py"))
    routes = re.findall(r"web\.(get|post|put|delete)\((\"[^\"]+\"|\w+)", source)
    assert len(routes) >= 5
    paths = {"INGEST_PATH": INGEST_PATH, "PATH": ASSETS_PATH, "GPU_TESTS_PATH": GPU_TESTS_PATH}
    paths |= {name: value for name, value in vars(access).items() if name.endswith("_PATH")}
    endpoints = [
        f"{verb.upper()} {re.sub(':[^}]+}', '}', paths.get(path, path.strip(chr(34))))}"
        for verb, path in routes
    ]
    assert [e for e in endpoints if f"### {e}\n" not in (ROOT / "docs/api.md").read_text()] == []


def test_every_check_of_readiness_is_documented() -> None:
    said = re.findall(r"^- `(\w+)`: (.+)$", _section("docs/api.md", "GET /readyz"), re.MULTILINE)
    assert said == [(check.name, check.meaning) for check in READY_CHECKS]


def _section(path: str, heading: str) -> str:
    return (ROOT / path).read_text().partition(f"### {heading}\n")[2].partition("\n### ")[0]


def test_the_page_of_stability_has_the_versions_of_the_code() -> None:
    text = page("stability.md")
    magic = re.search(r'b"(GPUWSEG\d)"', Path(segment.__file__).read_text())
    assert magic
    said = {
        f"`{VERSION_HEADER}: {WIRE_VERSION}`": "wire",
        f"| {SPOOL_VERSION}, `user_version`": "spool",
        f"| {SCHEMA_VERSION}, `schema_version`": "state file",
        f"`{magic[1]}`, first bytes": "segments",
        f"| {OUTBOX_VERSION}, `user_version`": "outbox",
        f"| {TOKENS_VERSION}, `version`": "tokens.json",
        f'`"version": {BODY_VERSION}`': "webhooks",
    }
    lines = text.splitlines()
    missing = [
        what for cell, what in said.items() if not any(what in li and cell in li for li in lines)
    ]
    assert not missing


def test_no_page_is_left_of_a_rule_that_is_gone(generated: dict[str, str]) -> None:
    found = {f"docs/rules/{path.name}" for path in (ROOT / "docs" / "rules").iterdir()}
    assert found - generated.keys() == set()


def test_every_page_is_reachable_from_the_readme() -> None:
    """A page that nothing links to is a page that nobody reads."""
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        queue += [(page.parent / t).resolve() for t in targets if t.endswith(".md")]
    assert [str(p.relative_to(ROOT)) for p in PAGES if p.resolve() not in seen] == []


def test_every_file_and_function_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    walks = re.findall(r"^\| `([\w/]+\.py)` \| `([^`]+)` \|", text, flags=re.MULTILINE)
    assert len(walks) > 20
    for file, function in walks:
        assert f"def {function.rpartition('.')[2]}(" in (ROOT / file).read_text(), function
    parts = (*PACKAGES, "release")
    folders = [ROOT / part for part in (*parts, "bench", "tests", "docs")]
    files = [str(path) for folder in folders for path in folder.rglob("*.*")]
    named = set(re.findall(r"`([\w/]+\.(?:py|sql|yaml))`", text))
    assert named
    assert [name for name in named if not any(path.endswith("/" + name) for path in files)] == []
