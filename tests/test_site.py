"""The documentation builds as a site: every link leads somewhere, and nothing is loaded from other hosts."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_every_page_by_hand_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", str(CONFIG["nav"])))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - named == set()


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: make site"
)
def test_the_site_builds_strictly_with_the_sources_that_pages_link_to(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = ["mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "search" / "search_index.json").exists()
    pages = {str(p.relative_to(site)): p.read_text() for p in site.rglob("*.html")}
    assert 'href="repository/contract/gpuwarden/views.sql.html"' in pages["tables.html"]
    assert 'href="../install.html"' in pages["repository/index.html"]
    assert [name for name, text in pages.items() if "default-src 'self'" not in text] == []


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: make site"
)
def test_what_a_page_loads_from_another_host_is_found(tmp_path: Path) -> None:
    from docs.mkdocs_hook import remote_loads

    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/a.js"></script><a href="https://b.example">b</a>'
        '<img src="images/c.webp"><link rel="stylesheet" href="//d.example/d.css">'
    )
    (tmp_path / "a.css").write_text("@font-face { src: url('https://e.example/e.woff2') }")
    wanted = {"https://cdn.example/a.js", "//d.example/d.css", "https://e.example/e.woff2"}
    assert remote_loads(tmp_path) == wanted
