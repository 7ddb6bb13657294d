"""Container images: the same bytes for the same files, and what is in them is what the lock and the tree say."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from images import (
    IMAGES,
    MACHINES,
    PORTS,
    STATE,
    USER,
    Debian,
    Image,
    archive,
    config_of,
    layer,
    read_lock,
    write,
)

ROOT = Path(__file__).parents[2]
SHA = "0" * 64


def planted(root: Path, umask: int) -> Path:
    before = os.umask(umask)
    try:
        (root / "usr/bin").mkdir(parents=True)
        (root / "tmp").mkdir()
        (root / "state").mkdir()
        (root / "usr/bin/tool").write_text("#!/bin/sh\n")
        (root / "usr/bin/tool").chmod(0o4700 & ~umask | 0o100)
        (root / "usr/bin/same").hardlink_to(root / "usr/bin/tool")
        (root / "bin").symlink_to("usr/bin")
        (root / "data").write_text("x" * 1000)
    finally:
        os.umask(before)
    return root


def test_a_layer_has_nothing_of_the_builder_in_it(tmp_path: Path) -> None:
    first = layer(planted(tmp_path / "a", 0o077), owned=["state"])
    second = layer(planted(tmp_path / "b", 0o002), owned=["state"])
    assert first == second
    data, diff = first
    plain = gzip.decompress(data)
    assert diff == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        found = {entry.name: entry for entry in tar}
        assert {name: oct(entry.mode) for name, entry in found.items() if not entry.issym()} == {
            "data": "0o644",
            "state": "0o755",
            "tmp": "0o1777",
            "usr": "0o755",
            "usr/bin": "0o755",
            "usr/bin/same": "0o755",
            "usr/bin/tool": "0o755",
        }
        assert {entry.name for entry in tar if entry.uid == USER} == {"state"}
        same = tar.extractfile("usr/bin/same")
        assert same is not None and same.read() == b"#!/bin/sh\n"


def made_for(machine: str, *layers: bytes) -> Image:
    config = config_of("agent", "1.2.3", [f"sha256:{n}" for n in range(len(layers))], machine)
    return Image(config, layers)


def files_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    return files


def named_by(files: dict[str, bytes], described: dict[str, Any]) -> bytes:
    content = files[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
    assert len(content) == described["size"]
    return content


def test_an_archive_names_every_file_by_its_digest() -> None:
    only = [made_for("x86_64", b"one", b"two")]
    data = archive(only, "gpuwarden-agent:1.2.3", {"a": "b"})
    assert data == archive(only, "gpuwarden-agent:1.2.3", {"a": "b"})
    files = files_of(data)
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(named_by(files, entry))
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    assert [named_by(files, one) for one in manifest["layers"]] == [b"one", b"two"]
    assert json.loads(named_by(files, manifest["config"]))["architecture"] == "amd64"


def test_one_name_stands_for_the_images_of_all_machines() -> None:
    images = [made_for(machine, machine.encode(), b"same") for machine in MACHINES]
    files = files_of(archive(images, "gpuwarden-agent:1.2.3", {"a": "b"}))
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "gpuwarden-agent:1.2.3"}
    index = json.loads(named_by(files, entry))
    layers = {}
    for one in index["manifests"]:
        manifest = json.loads(named_by(files, one))
        config = json.loads(named_by(files, manifest["config"]))
        assert config["architecture"] == one["platform"]["architecture"]
        layers[config["architecture"]] = [named_by(files, each) for each in manifest["layers"]]
    assert layers == {"amd64": [b"x86_64", b"same"], "arm64": [b"aarch64", b"same"]}
    assert len([name for name in files if files[name] == b"same"]) == 1


def test_the_file_of_one_machine_says_which(tmp_path: Path) -> None:
    images = [made_for(machine, b"layer") for machine in MACHINES]
    names = [write("agent", [one], tmp_path).name for one in images]
    assert names == ["gpuwarden-agent-1.2.3-amd64.oci.tar", "gpuwarden-agent-1.2.3-arm64.oci.tar"]
    assert write("agent", images, tmp_path).name == "gpuwarden-agent-1.2.3.oci.tar"


@pytest.mark.parametrize("part", ["agent", "collector"])
def test_an_image_runs_its_part_as_a_user_without_rights(part: str) -> None:
    config = config_of(part, "1.2.3", [], "x86_64")["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/gpuwarden/bin/gpuwarden", part, "run"]
    assert list(config["Volumes"]) == [f"/{STATE[part]}"]
    assert config["Healthcheck"]["Test"][-1] == str(PORTS[part])
    assert config["Labels"]["org.opencontainers.image.version"] == "1.2.3"


@pytest.mark.parametrize("machine", [*MACHINES])
def test_the_lock_names_packages_to_the_byte(machine: str) -> None:
    packages = Debian(machine).packages()
    names = [package.name for package in packages]
    assert names == sorted(set(names))
    assert {"libc6", "python3.11-minimal", "libssl3", "ca-certificates"} <= set(names)
    assert not {"dash", "bash", "apt", "dpkg"} & set(names)


def test_all_machines_have_the_same_packages() -> None:
    names = [[package.name for package in Debian(one).packages()] for one in MACHINES]
    assert names[0] == names[1]


@pytest.mark.parametrize("line", ["libc6 1", f"libc6 1 {SHA}0", f"../x 1 {SHA}"])
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(SystemExit, match="not name, version and SHA-256"):
        read_lock(f"# heading\n{line}\n", "debian.amd64.lock")


def test_a_package_is_asked_for_once(tmp_path: Path) -> None:
    (package,) = read_lock(f"libc6 1 {SHA}", "debian.amd64.lock")
    (tmp_path / f"{SHA}.deb").write_bytes(b"kept")
    assert Debian("aarch64", tmp_path).fetch(package).read_bytes() == b"kept"


def test_the_containerfile_copies_what_there_is_and_runs_as_nobody() -> None:
    text = (IMAGES / "Containerfile").read_text()
    steps = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    words = [line.split() for line in steps if line.strip()]
    assert {line[0] for line in words} <= {
        "ARG", "FROM", "RUN", "WORKDIR", "COPY", "LABEL", "ENV", "USER", "EXPOSE", "HEALTHCHECK",
        "ENTRYPOINT",
    }  # fmt: skip
    copied = [
        w for line in words if line[0] == "COPY" and "--from=build" not in line for w in line[1:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {f"{folder}" for folder in ("contract", "agent", "collector", "cli")} <= set(copied)
    last = words[max(n for n, line in enumerate(words) if line[0] == "FROM") :]
    assert ["USER", "65532:65532"] in last


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
