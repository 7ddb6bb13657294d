"""`make release` and docs/releasing.md list the same steps, and a step is done only if it is."""

import hashlib
import re
import subprocess
from pathlib import Path

import checklist
import release
from checklist import Built, report
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ROOT = Path(__file__).parent.parent.parent


def test_page_and_target_name_the_same_steps() -> None:
    page = (ROOT / "docs/releasing.md").read_text()
    named = re.findall(r"^(\d+)\. \*\*(.+?)\*\*:", page, re.MULTILINE)
    assert named == [(str(n), step.name) for n, step in enumerate(checklist.STEPS, 1)]
    assert "release/release.py" in (ROOT / "Makefile").read_text()


def states(built: Built) -> dict[str, str]:
    lines = (re.match(r" ?\d+\. (done|to do|by hand) +([^:]+)", line) for line in report(built))
    return {m[2].strip(): m[1] for m in lines if m}


def tree(path: Path, version: str = "1.2.3") -> Path:
    files = {
        "pyproject.toml": '[project]\nversion = "1.2.3"\n',
        "contract/gpuwarden/__init__.py": f'__version__ = "{version}"\n',
        "deploy/helm/gpuwarden/Chart.yaml": "version: 1.2.3\nappVersion: 1.2.3\n",
        "CHANGELOG.md": "## [1.2.3] - 2026-01-31\n",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_a_release_that_lacks_nothing_is_done_but_for_what_a_person_does(tmp_path: Path) -> None:
    root, out = tree(tmp_path / "tree"), tmp_path / "out"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["tag", "v1.2.3"]):
        subprocess.run(["git", *identity, *words], cwd=root, check=True)
    out.mkdir()
    wheel, sums = out / "a.whl", out / release.SUMS
    wheel.write_text("a")
    sums.write_text(release.sums([wheel]))
    built = Built([wheel, sums, *release.signed(Ed25519PrivateKey.generate(), sums, "a")], root)
    assert {name for name, state in states(built).items() if state == "to do"} == set()
    by_hand = {step.name for step in checklist.STEPS if step.check is None}
    assert {name for name, state in states(built).items() if state == "by hand"} == by_hand
    wheel.write_text("b")
    assert states(built)["Verify"] == "to do"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, version="1.2.2")
    (root / "CHANGELOG.md").write_text("## [Unreleased]\n")
    sums = root / release.SUMS
    sums.write_text(f"{hashlib.sha256(b'').hexdigest()}  a.whl\n")
    lines = "\n".join(report(Built([sums], root)))
    assert "Version: contract/gpuwarden/__init__.py has 1.2.2, not 1.2.3" in lines
    assert "Changelog: CHANGELOG.md has no dated section of 1.2.3" in lines
    assert "Sign: SHA256SUMS has no signature" in lines
    assert "Tag: HEAD has no tag v1.2.3" in lines
    assert states(Built([sums], root))["Build"] == "done"
