"""SHA256SUMS is what sha256sum reads."""

import shutil
import subprocess

import pytest
import release


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
