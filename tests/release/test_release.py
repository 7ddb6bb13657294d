"""SHA256SUMS is what sha256sum reads, and a second build of the tree gives the same."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import bundle
import deb
import pytest
import release
import rpm
import sbom
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.release.wheels import carried_python, make_wheel

from gpuwarden.minisign import PublicKey, verify


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
def test_two_builds_of_one_tree_have_the_same_sums(tmp_path: Path, monkeypatch) -> None:
    """Of trees that were checked out at other times, in other folders, in another order, by another umask."""
    sums = []
    other = make_wheel(tmp_path, "other", {"other.py": ""})
    for number, umask in enumerate((0o022, 0o077)):
        tree, out = tmp_path / f"tree{number}", tmp_path / f"out{number}"
        before = os.umask(umask)
        try:
            copied(tree, at_s=1_700_000_000 + number * 86_400, is_backwards=bool(number))
            out.mkdir()
            made = [bundle.build_wheel(out, tree)]
            monkeypatch.setattr(bundle, "CACHE", tmp_path / f"cache{number}")
            for part in bundle.EXTRAS:
                archive = bundle.bundle(part, made[0], [other], out, carried_python("x86_64"))
                made.append(archive)
                if shutil.which("dpkg-deb"):
                    made.append(deb.deb(archive, out))
                if rpm.why_not() is None:
                    made.append(rpm.rpm(archive, out))
        finally:
            os.umask(before)
        sums.append(release.sums(made))
    assert sums[0] == sums[1]
    assert len(sums[0].splitlines()) >= 3


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


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_minisign_reads_what_is_signed_here_and_we_what_it_signs(tmp_path: Path) -> None:
    file = tmp_path / release.SUMS
    file.write_text("abc  a.whl\n")
    release.signed(Ed25519PrivateKey.generate(), file, "a")
    check = ["minisign", "-V", "-m", release.SUMS, "-p", release.PUBLIC]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Trusted comment: release of a" in done.stdout
    file.write_text("abd  a.whl\n")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    made = ["minisign", "-G", "-W", "-f", "-p", "their.pub", "-s", "their.key"]
    subprocess.run(made, cwd=tmp_path, capture_output=True, check=True)
    signing = ["minisign", "-S", "-m", release.SUMS, "-s", "their.key", "-t", "theirs"]
    subprocess.run(signing, cwd=tmp_path, capture_output=True, check=True)
    key = PublicKey.parse((tmp_path / "their.pub").read_text())
    signature = (tmp_path / "SHA256SUMS.minisig").read_text()
    assert verify(key, signature, file.read_bytes()) == "theirs"


def test_what_is_in_a_bundle_is_listed_with_its_hash(tmp_path: Path) -> None:
    own, other = (
        make_wheel(tmp_path, name, {f"{name}.py": ""}) for name in ("gpuwarden", "some_lib")
    )
    carried = carried_python("x86_64")
    path = sbom.sbom("agent", own, [other], tmp_path, carried)
    found = json.loads(path.read_text())
    assert path.name == "gpuwarden-agent-1.0-x86_64.cdx.json"
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert [c["name"] for c in found["components"]] == ["some-lib", "cpython"]
    assert found["components"][0]["purl"] == "pkg:pypi/some-lib@1.0"
    wanted = hashlib.sha256(other.read_bytes()).hexdigest()
    assert found["components"][0]["hashes"] == [{"alg": "SHA-256", "content": wanted}]
    first = path.read_bytes()
    assert sbom.sbom("agent", own, [other], tmp_path, carried).read_bytes() == first
