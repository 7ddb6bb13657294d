"""The examination names what is slow, what is missing, and what to do, and harms nothing."""

import os
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.agent.collect.kubernetes.fake_cluster import Account, answer_of, served
from tests.agent.fakes import fake_probe

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.doctor import FAIL, OK, WARN, Check
from gpuwarden_agent.collect import cloud
from gpuwarden_agent.collect.cloud import metadata_service
from gpuwarden_agent.collect.kubernetes.directory import pod_directory
from gpuwarden_agent.collect.nvidia.timing import CallReport
from gpuwarden_agent.doctor import CallCost, check_gpus, check_host, examine, merged
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.queue.spool import FILE_NAME, open_spool
from gpuwarden_agent.settings import AgentSettings

ALL_CAPABILITIES, NONE = "000001ffffffffff", "0000000000000000"


def report(**some: Any) -> CallReport:
    return replace(
        CallReport("nvmlX", "x", True, "SUCCESS", 1.0, 2.0, 20, 1),
        **some,
    )


def make_root(root: Path, *, capabilities: str, mounts: str = "proc /proc proc rw 0 0") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    (root / "proc/self/mounts").write_text(mounts + "\n")
    (root / "proc/pressure").mkdir()
    (root / "proc/pressure/io").write_text("")
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("")
    return root


@contextmanager
def answering(body: bytes, date: datetime | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            if date is not None:
                self.send_header("Date", format_datetime(date, usegmt=True))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def checks_of(root: Path, url: str = "http://127.0.0.1:1", **more: Any) -> dict[str, Check]:
    settings = AgentSettings(
        collector_url=(url,), state_dir=more.pop("state_dir", root / "state"), **more
    )
    found = check_host(settings, SystemClock(), root=root, has_nvidia=True)
    return {check.name: check for check in found}


def test_every_probe_is_read_and_timed_and_one_that_fails_says_why() -> None:
    good, bad = fake_probe("gpu0", gpu_uuid="GPU-0"), fake_probe("gpu1")

    def fail(ts_ms: int) -> Any:
        raise ProbeError("GPU 1 is lost")

    bad.answer = fail
    calls, checks = examine([good, bad], SystemClock(), reads=5)
    assert len(good.read_at) == 5
    assert [(c.name, c.status, c.finding) for c in checks] == [
        ("gpu0", OK, "answers"),
        ("gpu1", FAIL, "GPU 1 is lost"),
    ]
    assert [(c.source, c.report.count, c.report.supported) for c in calls] == [
        ("gpu0", 5, True),
        ("gpu1", 0, False),
    ]


def test_a_probe_that_hangs_costs_its_limit_and_nothing_else() -> None:
    hung, good = fake_probe("gpu0"), fake_probe("gpu1")
    hung.go_on.clear()
    try:
        _, checks = examine([hung, good], SystemClock(), reads=1, limit_s=0.2)
    finally:
        hung.go_on.set()
    assert [(c.name, c.status) for c in checks] == [("gpu0", FAIL), ("gpu1", OK)]
    assert "no answer within 0.2 s" in checks[0].finding


def test_no_probe_is_read_before_all_are_described() -> None:
    """The first calls about a GPU may take seconds, in which the processes on it cannot be read."""
    sleeping, processes = fake_probe("gpu0"), fake_probe("processes")
    done: list[str] = []
    describe = sleeping.describe

    def slowly() -> Any:
        time.sleep(0.2)
        done.append("described")
        return describe()

    def read(ts_ms: int) -> Any:
        done.append("read")
        return {}

    sleeping.describe, processes.answer = slowly, read
    examine([sleeping, processes], SystemClock(), reads=1)
    assert done == ["described", "read"]


def gpu_row(gpu: int, **more: Any) -> dict[str, Any]:
    return {"gpu": gpu, "gpu_uuid": f"GPU-{gpu}", **more}


def test_why_a_gpu_of_a_virtual_machine_tells_less_is_said() -> None:
    probe = fake_probe("gpu0")
    probe.describe = lambda: {"gpus": [gpu_row(0, virtualization="vgpu")]}
    _, checks = examine([probe], SystemClock(), reads=1)
    (check,) = [check for check in checks if check.name == "virtualization"]
    assert check.status == WARN
    assert check.finding.startswith("GPU 0: a vGPU of this virtual machine")
    assert "run an agent on the host" in check.remedy
    rows = [gpu_row(n, virtualization="passthrough") for n in (1, 0)]
    (check,) = check_gpus([*rows, gpu_row(2, virtualization="none"), gpu_row(3)])
    assert (check.status, check.finding[:11]) == (OK, "GPU 0, 1: p")


def test_the_rack_of_gpus_is_said_and_one_without_a_domain_is_a_warning() -> None:
    place = {"chassis_serial": "18", "tray": 3, "slot": 4}
    domain = {"fabric_cluster_uuid": "ab"}
    good, bad = check_gpus(
        [gpu_row(0, **place, **domain), gpu_row(1, **place, **domain), gpu_row(2, **place)]
    )
    assert (good.status, good.finding) == (
        OK,
        "GPU 0, 1: chassis 18, tray 3, slot 4, NVLink domain ab",
    )
    assert (bad.status, bad.finding) == (
        WARN,
        "GPU 2: chassis 18, tray 3, slot 4; not registered with an NVLink domain",
    )
    assert check_gpus([gpu_row(0, module_id=1)]) == []


def test_a_probe_that_times_its_calls_has_them_in_the_table() -> None:
    probe = fake_probe("gpu0")
    probe.calls = lambda: [report(call="nvmlDeviceGetUtilizationRates")]
    calls, _ = examine([probe], SystemClock(), reads=1)
    assert "nvmlDeviceGetUtilizationRates" in [c.report.call for c in calls]


def test_what_gpus_answer_alike_is_one_row_with_the_slowest_of_them() -> None:
    calls = [CallCost(f"gpu{n}", report(p50_ms=float(n), p99_ms=None)) for n in range(8)]
    odd = CallCost("gpu8", report(supported=False, code="NOT_SUPPORTED"))
    slow = CallCost("gpu0", report(call="nvmlY", tier_s=60))
    rows = merged([odd, slow, *calls])
    assert [(c.source, c.report.p50_ms, c.report.count) for c in rows] == [
        ("gpu0 ... gpu7", 7.0, 160),
        ("gpu0", 1.0, 20),
        ("gpu8", 1.0, 20),
    ]
    assert rows[0].report.p99_ms is None


def test_a_host_that_lacks_nothing_is_ok(tmp_path: Path) -> None:
    root = make_root(tmp_path, capabilities=ALL_CAPABILITIES)
    with answering(b'{"status": "ok"}', datetime.now(UTC)) as url:
        checks = checks_of(root, url, spool_bytes_max=1024**2)
    assert {name: c.status for name, c in checks.items()} == dict.fromkeys(
        ("kernel_log", "process_io", "pressure", "state_dir", "collector"), OK
    )
    assert list((tmp_path).glob("tmp*")) == [], "nothing is left behind"


def test_what_a_capability_would_give_is_named_with_it(tmp_path: Path) -> None:
    root = make_root(
        tmp_path, capabilities=NONE, mounts="proc /proc proc rw,nosuid,hidepid=invisible 0 0"
    )
    (root / "dev/kmsg").unlink()
    (root / "proc/pressure/io").unlink()
    checks = checks_of(root)
    for name in ("process_io", "processes"):
        assert checks[name].status == WARN
        assert "CAP_SYS_PTRACE" in checks[name].remedy
    assert checks["kernel_log"].status == WARN
    assert "psi=1" in checks["pressure"].remedy


def test_hidepid_hides_nothing_from_who_may_trace(tmp_path: Path) -> None:
    mounts = "proc /proc proc rw,hidepid=2 0 0"
    root = make_root(tmp_path, capabilities=ALL_CAPABILITIES, mounts=mounts)
    assert "processes" not in checks_of(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read the kernel's log")
def test_a_kernel_log_that_may_not_be_read_names_the_capability(tmp_path: Path) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    (root / "dev/kmsg").chmod(0)
    assert "CAP_SYSLOG" in checks_of(root)["kernel_log"].remedy


def test_kubelets_socket_is_looked_at_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    assert "pod_resources" not in checks_of(root)
    folder = root / "var/lib/kubelet/pod-resources"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)  # the path of a socket has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind("kubelet.sock")
        assert checks_of(root)["pod_resources"].status == OK


def test_names_of_pods_are_asked_for_where_there_is_a_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    assert "pod_names" not in checks_of(root)
    account = Account(tmp_path / "account")
    with served(account) as kubelet:
        kubelet.answers["/pods"] = answer_of([])
        in_pod = partial(pod_directory, account_dir=account.folder, kubelet=kubelet.address)
        monkeypatch.setattr("gpuwarden_agent.doctor.pod_directory", in_pod)
        check = checks_of(root, kubernetes="kubelet")["pod_names"]
        assert check.status == OK
        kubelet.token = "another"
        check = checks_of(root, kubernetes="kubelet")["pod_names"]
    assert check.status == WARN
    assert "token is refused" in check.finding
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert checks_of(root, kubernetes="api")["pod_names"].status == FAIL


def test_the_cloud_is_said_with_what_its_metadata_did_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    assert "cloud" not in checks_of(root)
    dmi = root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("Amazon EC2\n")
    (dmi / "product_name").write_text("p5.48xlarge\n")
    check = checks_of(root)["cloud"]
    assert (check.status, "instance_type p5.48xlarge" in check.finding) == (OK, True)
    assert "cloud_metadata" in check.finding
    # Nobody listens on this port of loopback.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        service = metadata_service(free.getsockname())
        monkeypatch.setattr(cloud, "metadata_service", lambda: service)
        check = checks_of(root, cloud_metadata=True)["cloud"]
    assert check.status == WARN
    assert "does not tell more: Connection refused" in check.finding


def test_a_folder_that_cannot_be_written_or_is_too_small_is_told(tmp_path: Path) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    checks = checks_of(root, state_dir=Path("/proc/1/nothing"))
    assert checks["state_dir"].status == FAIL
    assert checks_of(root, spool_bytes_max=2**60)["state_dir"].status == WARN


def test_a_collector_that_is_away_or_something_else_is_told(tmp_path: Path) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    away = checks_of(root)["collector"]
    assert (away.status, away.finding) == (
        FAIL,
        "http://127.0.0.1:1/healthz: Connection refused",
    )
    for body in (b"<html>", b"[]"):
        with answering(body) as url:
            assert checks_of(root, url)["collector"].status == FAIL


@pytest.mark.parametrize(("offset_s", "way"), [(-600, "ahead of"), (600, "behind")])
def test_clocks_that_disagree_are_told(tmp_path: Path, offset_s: int, way: str) -> None:
    root = make_root(tmp_path, capabilities=NONE)
    theirs = datetime.now(UTC) + timedelta(seconds=offset_s)
    with answering(b'{"status": "ok"}', theirs) as url:
        check = checks_of(root, url)["collector"]
    assert check.status == WARN
    assert f"10 min {way} the collector's" in check.finding


def spooled(folder: Path, clock: ManualClock, batches: int) -> None:
    spool = open_spool(folder, bytes_max=10**9, clock=clock, boot="b")
    for _ in range(batches):
        spool.put(bytes(400_000), 1)
    spool.close()


def spool_check(folder: Path, clock: ManualClock, **more: Any) -> Check | None:
    settings = AgentSettings(collector_url=("http://127.0.0.1:1",), state_dir=folder, **more)
    found = check_host(settings, clock, root=folder, has_nvidia=False)
    return {check.name: check for check in found}.get("spool")


def test_what_waits_in_the_spool_is_counted_and_aged(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    assert spool_check(tmp_path, clock) is None, "no agent has run"
    spooled(tmp_path, clock, 0)
    assert spool_check(tmp_path, clock) == Check("spool", OK, "nothing waits for the collector")
    spooled(tmp_path, clock, 3)
    clock.advance(200)
    check = spool_check(tmp_path, clock)
    assert check is not None and (check.status, "3 batches wait (1.1 MiB)" in check.finding) == (
        OK,
        True,
    )
    clock.advance(200)
    check = spool_check(tmp_path, clock)
    assert check is not None and (check.status, "journalctl" in check.remedy) == (WARN, True)
    check = spool_check(tmp_path, clock, spool_bytes_max=1_250_000)
    assert check is not None and (check.status, "it is full" in check.finding) == (FAIL, True)


def test_batches_that_were_refused_are_told_with_the_reason(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    spool = open_spool(tmp_path, bytes_max=10**9, clock=clock, boot="b")
    spool.put(b"x", 1)
    spool.refuse(1, "422: no such table")
    spool.close()
    check = spool_check(tmp_path, clock)
    assert check is not None and (check.status, "422: no such table" in check.finding) == (
        WARN,
        True,
    )
    clock.advance(2 * 86_400)
    assert spool_check(tmp_path, clock) == Check("spool", OK, "nothing waits for the collector")


def test_a_spool_of_a_newer_version_or_of_junk_is_told(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    spooled(tmp_path, clock, 1)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("PRAGMA user_version = 99")
    db.close()
    check = spool_check(tmp_path, clock)
    assert check is not None and (check.status, "newer gpuwarden" in check.finding) == (FAIL, True)
    (tmp_path / FILE_NAME).write_bytes(b"junk " * 1000)
    check = spool_check(tmp_path, clock)
    assert check is not None and check.status == WARN


@contextmanager
def speaking_tls(authority: trustme.CA, ends_at: datetime) -> Iterator[str]:
    """A server that does the handshake and no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_after=ends_at).configure_cert(context)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
                with context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)
            except ssl.SSLError:
                continue
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://user:secret@127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


@pytest.mark.parametrize(("days", "status"), [(100, OK), (10, WARN)])
def test_the_lives_of_certificate_and_authority_are_told(
    tmp_path: Path, days: int, status: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ends_at = datetime.now(UTC) + timedelta(days=days)
    root = make_root(tmp_path / "root", capabilities=NONE)
    with speaking_tls(authority, ends_at) as url:
        checks = checks_of(root, url, tls_ca=tmp_path / "ca.pem")
    certificate = checks["certificate"]
    assert (certificate.status, f"{ends_at:%Y-%m-%d}" in certificate.finding) == (status, True)
    assert not [check for check in checks.values() if "secret" in check.finding + check.remedy]
    assert checks["authority"].status == OK


def test_a_certificate_that_is_not_believed_is_the_collectors_line(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    root = make_root(tmp_path / "root", capabilities=NONE)
    with speaking_tls(trustme.CA(), datetime.now(UTC) + timedelta(days=100)) as url:
        checks = checks_of(root, url, tls_ca=tmp_path / "ca.pem")
    assert "certificate" not in checks
    assert checks["collector"].status == FAIL
