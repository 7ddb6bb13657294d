"""The images of ARM hosts, run under an emulator: the agent's samples are in the collector's SQL."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.images, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
EMULATOR = "/usr/bin/qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
NAME = "gpuwarden-test-aarch64"
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
USER = "65532:65532"


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if platform.machine() != "x86_64" or sys.version_info[:2] != (3, 11):
        return "is for x86_64 with Python 3.11"
    missing = [one for one in ("apt-get", "dpkg-deb", EMULATOR) if shutil.which(one) is None]
    return f"needs {', '.join(missing)} (Debian: qemu-user-static)" if missing else None


@pytest.fixture(scope="module")
def emulated() -> Iterator[None]:
    """Programs of ARM hosts run here, as long as this fixture is there."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        if not (BINFMT / "register").exists():
            mount = ["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)]
            if subprocess.run(mount, check=False, capture_output=True).returncode:
                pytest.skip("this kernel does not run programs of other machines (binfmt_misc)")
            stack.callback(subprocess.run, ["umount", str(BINFMT)], check=False)
        if not any((BINFMT / name).exists() for name in ("qemu-aarch64", NAME)):
            # F: the emulator is opened now, so that it need not be in the image.
            (BINFMT / "register").write_text(f":{NAME}:M::{MAGIC}:{MASK}:{EMULATOR}:F")
            stack.callback((BINFMT / NAME).write_text, "-1")
        yield


def blob(tar: tarfile.TarFile, digest: str) -> Any:
    return tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")


def unpack(archive: Path, folder: Path) -> Path:
    """Lay out the image as a container's root."""
    with tarfile.open(archive) as tar:
        (entry,) = json.load(tar.extractfile("index.json"))["manifests"]  # type: ignore[arg-type]
        assert entry["platform"]["architecture"] == "arm64"
        for layer in json.load(blob(tar, entry["digest"]))["layers"]:
            with tarfile.open(fileobj=blob(tar, layer["digest"]), mode="r:gz") as files:
                files.extractall(folder, filter="tar")
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "dev").mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def roots(emulated: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    out = tmp_path_factory.mktemp("arm")
    argv = [sys.executable, str(ROOT / "release/images.py"), "--machine=aarch64", f"--out={out}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    with ExitStack() as stack:
        for path in sorted(out.glob("*.oci.tar")):
            part = path.name.split("-")[1]
            root = found[part] = unpack(path, out / part)
            for mount in (["-t", "proc", "proc"], ["--bind", "/dev"]):
                target = str(root / mount[-1].strip("/"))
                subprocess.run(["mount", *mount, target], check=True)
                stack.callback(subprocess.run, ["umount", target], check=False)
        yield found


def start(root: Path, *argv: str, **environment: str) -> "subprocess.Popen[bytes]":
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    return subprocess.Popen(
        [chroot, f"--userspec={USER}", str(root), "/opt/gpuwarden/bin/gpuwarden", *argv],
        env={"PATH": "/opt/gpuwarden/bin:/usr/bin", "LANG": "C.UTF-8", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def ask(port: int, sql: str) -> Any:
    """Rows of an answer; None while there is none."""
    url = f"http://127.0.0.1:{port}/v1/sql"
    try:
        with urllib.request.urlopen(url, data=sql.encode(), timeout=60) as answer:
            return json.load(answer)["rows"]
    except (OSError, KeyError, ValueError):
        return None


def test_agent_and_collector_of_arm_hosts_work_together(roots: dict[str, Path]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    running = [
        start(roots["collector"], "collector", "run", GPUWARDEN_COLLECTOR_PORT=str(port)),
        start(
            roots["agent"], "agent", "run",
            GPUWARDEN_AGENT_COLLECTOR_URL=f"http://127.0.0.1:{port}", GPUWARDEN_AGENT_NODE="arm",
        ),
    ]  # fmt: skip
    try:
        limit = time.monotonic() + 600
        found = None
        while not (found and found[0][0] >= 5):
            assert time.monotonic() < limit, found
            assert [each.poll() for each in running] == [None, None]
            time.sleep(2)
            found = ask(port, "SELECT count(*), min(node) FROM host_samples")
        assert found[0][1] == "arm"
    finally:
        for each in running:
            each.terminate()
        codes = [each.wait(120) for each in running]
    assert codes == [0, 0]
