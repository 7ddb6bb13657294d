"""The images as people run them: without root, capabilities or a writable file system, killed and started again.

The agent has simulated GPUs. Both run in a network of their own with only the loopback in it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.images, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
NETWORK = "gpuwarden-images"
CONFINED = (
    "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", f"--network=ns:/run/netns/{NETWORK}",
    "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
)  # fmt: skip
TOOLS = ("buildah", "podman", "runc", "ip", "mmdebstrap")
ENGINE = ["--cgroup-manager=cgroupfs", "--runtime=runc", "--events-backend=file"]
SIMULATOR = (f"--volume={ROOT}/simulator:/simulator:ro", "--env=PYTHONPATH=/opt/gpuwarden/site:/simulator",
             "--env=GPUWARDEN_AGENT_BACKEND=simulator")  # fmt: skip


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if sys.version_info[:2] != (3, 11):
        return "its base, Debian 12, has Python 3.11"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


class Podman:
    """Containers of one folder, in a network of their own."""

    def __init__(self, folder: Path) -> None:
        config = folder / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
        )
        self.env = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(config),
            "BUILDAH_ISOLATION": "chroot",
        }

    def tool(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a program on the images of the folder."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=self.env)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def __call__(self, *argv: str, check: bool = True) -> str:
        return self.tool("podman", *ENGINE, *argv, check=check).stdout

    def succeeds(self, *argv: str) -> bool:
        """Whether it ends with 0."""
        return self.tool("podman", *ENGINE, *argv, check=False).returncode == 0

    def sql(self, query: str) -> list[str]:
        """The only row of an answer; nothing while the collector is away."""
        argv = ("exec", "collector", "gpuwarden", "sql", "--format", "csv", query)
        lines = self(*argv, check=False).splitlines()
        return lines[1].split(",") if len(lines) > 1 else []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Images made as their page says, on a base of Debian, without a registry."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    # Its name may have 50 characters.
    folder = Path(tempfile.mkdtemp(prefix="gw-", dir="/var/tmp"))
    podman = Podman(folder)
    try:
        base, out = folder / "base.tar", tmp_path_factory.mktemp("images")
        packages = "--include=python3,ca-certificates"
        podman.tool("mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(base))
        podman("import", "--quiet", str(base), "localhost/base")
        argv = (
            sys.executable,
            str(ROOT / "release/images.py"),
            "--base=localhost/base",
            f"--out={out}",
        )
        podman.tool(*argv)
        for path in out.iterdir():
            podman("load", "--quiet", "--input", str(path))
        yield podman
    finally:
        podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def podman(built: Podman) -> Iterator[Podman]:
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    try:
        subprocess.run(["ip", "-n", NETWORK, "link", "set", "lo", "up"], check=True)
        yield built
    finally:
        built("rm", "--all", "--force", check=False)
        subprocess.run(["ip", "netns", "del", NETWORK], check=False)


def run(podman: Podman, part: str, volume: Path, *more: str) -> None:
    state = {"agent": "/var/lib/gpuwarden-agent", "collector": "/var/lib/gpuwarden"}[part]
    volume.mkdir()
    os.chown(volume, 65532, 65532)
    image = f"localhost/gpuwarden-{part}:0.1.0"
    podman(
        "run", "--detach", f"--name={part}", *CONFINED, f"--volume={volume}:{state}", *more, image
    )


def wait(is_so: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    limit = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < limit, what
        time.sleep(0.5)


def samples(podman: Podman) -> int:
    found = podman.sql("SELECT count(*) FROM gpu_samples")
    return int(found[0]) if found else 0


def killed(podman: Podman, part: str, for_s: float) -> None:
    podman("kill", "--signal=KILL", part)
    time.sleep(for_s)
    podman("start", part)


def test_agent_and_collector_lose_nothing_when_they_are_killed(
    podman: Podman, tmp_path: Path
) -> None:
    run(podman, "collector", tmp_path / "data")
    wait(lambda: podman.succeeds("exec", "collector", "gpuwarden-health", "8750"), "collector")
    run(podman, "agent", tmp_path / "spool", *SIMULATOR, "--env=GPUWARDEN_AGENT_NODE=sim1")
    wait(lambda: samples(podman) > 0, "no samples")
    podman("exec", "agent", "gpuwarden-health", "9750")
    killed(podman, "collector", 8)
    before = samples(podman)
    wait(lambda: samples(podman) > before + 80, "samples after the collector's end")
    killed(podman, "agent", 1)
    before = samples(podman)
    wait(lambda: samples(podman) > before + 80, "samples after the agent's end")
    # While the collector was away the agent continued: the only seconds without a sample are the agent's own.
    rows, distinct, seconds, span = map(int, podman.sql(
        "SELECT count(*), count(DISTINCT (gpu_uuid, ts)), count(DISTINCT ts), "
        "date_diff('second', min(ts), max(ts)) + 1 FROM gpu_samples"
    ))  # fmt: skip
    assert rows == distinct == 8 * seconds
    assert span - seconds <= 15
    (crashed,) = podman.sql("SELECT count(*) FROM events WHERE kind = 'agent_gap'")
    assert crashed == "1"


def manifest(kind: str, name: str) -> dict[str, Any]:
    """A workload of deploy/kubernetes."""
    for path in (ROOT / "deploy/kubernetes").glob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            if one and (one["kind"], one["metadata"]["name"]) == (kind, name):
                return dict(one["spec"]["template"]["spec"])
    raise AssertionError(name)


def as_manifest(pod: dict[str, Any], volumes: dict[str, Path], fields: dict[str, str]) -> list[str]:
    """How Podman runs a pod's only container. `fields`: what Kubernetes puts in by `fieldPath`."""
    (container,) = pod["containers"]
    argv = [f"--user={pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"]
    for variable in container["env"]:
        text = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        argv.append(f"--env={variable['name']}={text}")
    for mount in container["volumeMounts"]:
        mode = "ro" if mount.get("readOnly") else "rw"
        argv.append(f"--volume={volumes[mount['name']]}:{mount['mountPath']}:{mode}")
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    return argv


def test_the_manifests_containers_ship_over_tls_with_a_token(
    podman: Podman, tmp_path: Path
) -> None:
    folders = {
        name: tmp_path / name
        for name in ("data", "tmp", "tls", "state", "token", "ca", "pod-resources")
    }
    for folder in folders.values():
        folder.mkdir()
    for name in ("data", "tmp", "tls"):
        os.chown(folders[name], 65532, 65532)
    init = ["collector", "init", "--name=gpuwarden.gpuwarden.svc", f"--dir={folders['tls']}",
            f"--data-dir={tmp_path}"]  # fmt: skip
    subprocess.run([str(Path(sys.executable).with_name("gpuwarden")), *init], check=True)
    (folders["tls"] / "server.pem").rename(folders["tls"] / "tls.crt")
    (folders["tls"] / "server.key").rename(folders["tls"] / "tls.key")
    for path in folders["tls"].iterdir():
        os.chown(path, 65532, 65532)
    shutil.copy(folders["tls"] / "ca.pem", folders["ca"] / "ca.crt")
    names = ("--add-host=gpuwarden.gpuwarden.svc:127.0.0.1",)
    stateful = manifest("StatefulSet", "gpuwarden-collector")
    podman("run", "--detach", "--name=collector", *CONFINED, *as_manifest(stateful, folders, {}),
           "localhost/gpuwarden-collector:0.1.0")  # fmt: skip
    healthy = ("exec", "collector", "gpuwarden-health", "8750")
    wait(lambda: podman.succeeds(*healthy), "collector")
    create = ("exec", "collector", "gpuwarden", "token", "create")
    token = podman(*create, "--scope=ingest", "--any-node", "--comment=cluster").strip()
    (folders["token"] / "token").write_text(token)
    reader = podman(*create, "--scope=read", "--comment=me").strip()
    daemon = manifest("DaemonSet", "gpuwarden-agent-nvidia")
    fields = {"spec.nodeName": "gpu-7", "status.hostIP": "127.0.0.1"}
    podman("run", "--detach", "--name=agent", *CONFINED, *names, *as_manifest(daemon, folders, fields),
           *SIMULATOR, "localhost/gpuwarden-agent:0.1.0")  # fmt: skip
    asked = (
        "exec", f"--env=GPUWARDEN_TOKEN={reader}", "--env=GPUWARDEN_URL=https://127.0.0.1:8750",
        "--env=GPUWARDEN_CA=/etc/gpuwarden/tls/ca.pem", "collector", "gpuwarden", "sql", "--format=csv",
        "SELECT DISTINCT node FROM gpu_samples",
    )  # fmt: skip
    wait(lambda: podman(*asked, check=False).split() == ["node", "gpu-7"], podman("logs", "agent"))
    assert podman.succeeds("exec", "agent", "gpuwarden-health", "9750")


@pytest.mark.parametrize("part", ["agent", "collector"])
def test_nothing_in_the_images_can_be_written(podman: Podman, part: str) -> None:
    script = (
        "import os, sys; sys.exit(os.getuid() != 65532 or os.access('/opt/gpuwarden', os.W_OK))"
    )
    image = f"localhost/gpuwarden-{part}:0.1.0"
    podman("run", "--rm", *CONFINED, "--entrypoint=python3", image, "-c", script)
