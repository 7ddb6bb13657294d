"""Container images: what is laid out for them is what the wheel has, and their health check says what it should."""

import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import images
import pytest
from bundle import build_wheel
from images import IMAGES, lay_out_files
from interpreter import ARCHITECTURES

FILES = ("gpuwarden_cli/main.py", "gpuwarden_postgres/server.py", "gpuwarden_prometheus/api.py")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a wheel; no packages of others, which need a network."""
    monkeypatch.setattr(images, "install_packages", lambda part, target, site: {})
    (tmp_path / "wheel").mkdir()
    return build_wheel(tmp_path / "wheel")


def test_every_module_of_the_wheel_is_laid_out_for_each_machine(
    wheels: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    lay_out_files(("agent", "collector"), [*ARCHITECTURES], folder)
    with zipfile.ZipFile(wheels) as wheel:
        modules = {name for name in wheel.namelist() if name.endswith(".py")}
    assert modules >= {*FILES}
    for machine in ARCHITECTURES.values():
        for part in ("agent", "collector"):
            site = folder / machine / part
            laid_out = {str(path.relative_to(site)) for path in site.rglob("*.py")}
            missing = {name.partition("/")[0] for name in modules - laid_out}
            assert missing == ({"gpuwarden_simulator"} if part == "agent" else set())
            assert any(site.rglob("*.pyc"))
    assert {path.name for path in (folder / "bin").iterdir()} == {"gpuwarden", "gpuwarden-health"}


def test_without_buildah_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="install it"):
        images.build("agent", ["x86_64"], "base", tmp_path, tmp_path)


@pytest.mark.parametrize(("answer", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_says_whether_the_part_answers(answer: int | None, code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer or 0)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        if answer is None:
            server.server_close()
        else:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        argv = [sys.executable, str(IMAGES / "health.py"), str(port)]
        done = subprocess.run(argv, check=False, timeout=30)
        if answer is not None:
            server.shutdown()
    assert done.returncode == code
