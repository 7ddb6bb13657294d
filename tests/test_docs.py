"""Documentation that must be true: generated pages are current, links lead somewhere, all is covered."""

import importlib.util
import re
from pathlib import Path

import pytest

from gpuwarden.wire import INGEST_PATH

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().pages()))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (ROOT / name).read_text() == generator().pages()[name], "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
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


def anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_endpoint_is_documented() -> None:
    files = ("collector/gpuwarden_collector/app.py", "rules/gpuwarden_rules/http/routes.py")
    files += ("collector/gpuwarden_collector/access/routes.py",)
    source = "".join((ROOT / file).read_text() for file in files)
    routes = re.findall(r"web\.(get|post|delete)\((\"[^\"]+\"|\w+)", source)
    assert len(routes) >= 5
    paths = {"INGEST_PATH": INGEST_PATH}
    endpoints = [f"{verb.upper()} {paths.get(path, path.strip(chr(34)))}" for verb, path in routes]
    assert [e for e in endpoints if f"### {e}\n" not in (ROOT / "docs/api.md").read_text()] == []


def test_every_event_is_documented() -> None:
    from gpuwarden_agent.events import KINDS
    from gpuwarden_collector.owners import CLAIMED_TWICE

    page = (ROOT / "docs" / "events.md").read_text()
    kinds = (*KINDS, CLAIMED_TWICE)
    assert [
        kind for kind in kinds if not re.search(rf"^### {kind}$", page, flags=re.MULTILINE)
    ] == []


def test_no_page_is_left_of_a_rule_that_is_gone() -> None:
    found = {f"docs/rules/{path.name}" for path in (ROOT / "docs" / "rules").iterdir()}
    assert found - generator().pages().keys() == set()


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
