"""SHA256SUMS is what sha256sum reads, and a second build of the tree gives the same."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import bundle
import nfpm
import pytest
import release
from sbom import sbom
from tests.release.wheels import PACKAGES, carried_python, own_wheel


def test_the_sums_are_those_that_sha256sum_checks(tmp_path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    for name in ("b.whl", "a.pyz"):
        (tmp_path / name).write_text(name)
    (tmp_path / release.SUMS).write_text(release.sums([*tmp_path.iterdir()]))
    check = ["sha256sum", "--check", release.SUMS]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.pyz: OK\nb.whl: OK\n"
    (tmp_path / "a.pyz").write_text("other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.slow
def test_two_builds_of_one_tree_have_the_same_sums(tmp_path: Path):
    """Of trees that were checked out at other times, in other folders, in another order, by another umask."""
    sums = []
    for number, umask in enumerate((0o022, 0o077)):
        tree, out = tmp_path / f"tree{number}", tmp_path / f"out{number}"
        before = os.umask(umask)
        try:
            copied(tree, at_s=1_700_000_000 + number * 86_400, is_backwards=bool(number))
            out.mkdir()
            made = [bundle.build_wheel(out, tree)]
            for part in bundle.EXTRAS:
                archive = bundle.bundle(part, made[0], PACKAGES, out, carried_python("x86_64"))
                made += [archive, sbom(archive)]
                made += [nfpm.package(archive, out, form) for form in nfpm.FORMATS]
        finally:
            os.umask(before)
        sums.append(release.sums(made))
    assert sums[0] == sums[1]
    assert len(sums[0].splitlines()) == 9


def copied(tree: Path, *, at_s: int, is_backwards: bool) -> None:
    tree.mkdir()
    names = sorted(
        (*bundle.PACKAGES, "pyproject.toml", "README.md", "LICENSE"), reverse=is_backwards
    )
    for name in names:
        source = bundle.ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, tree / name)
    for path in tree.rglob("*"):
        os.utime(path, (at_s, at_s))


def test_what_is_in_a_bundle_is_listed(tmp_path: Path) -> None:
    archive = bundle.bundle(
        "agent", own_wheel(tmp_path), PACKAGES, tmp_path, carried_python("x86_64")
    )
    path = sbom(archive)
    listed = json.loads(path.read_text())
    assert path.name == "gpuwarden-agent-1.2.3-x86_64.cdx.json"
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert [c["purl"] for c in listed["components"]] == [
        "pkg:pypi/some-lib@1.0", "pkg:generic/python@3.13.5", "pkg:generic/openssl@3.5.7",
        "pkg:generic/sqlite@3.46.1",
    ]  # fmt: skip
    (digest,) = listed["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    first = path.read_bytes()
    assert sbom(archive).read_bytes() == first
