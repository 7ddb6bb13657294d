"""Checks what the agent can read on this host, what each call costs, and what it lacks.

`examine` reads every probe a few times, as the sampler does. `check_host` checks what the agent
needs from the host: permissions, the spool's disk, the collector. It writes only a file that it
deletes at once, and sends no samples.
"""

import json
import os
import socket
import sqlite3
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

from gpuwarden.access import TOKEN_PATH
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.doctor import FAIL, OK, WARN, Check, check_life, check_unit
from gpuwarden.http_client import opener
from gpuwarden.lifecycle import StartError
from gpuwarden.sizes import size_text
from gpuwarden.wire import error_sentence
from gpuwarden_agent.collect.cloud import cloud_host
from gpuwarden_agent.collect.files import is_there
from gpuwarden_agent.collect.host.energy import find_zones
from gpuwarden_agent.collect.kubernetes.directory import pod_directory
from gpuwarden_agent.collect.nvidia.timing import CallReport
from gpuwarden_agent.counters import quantile
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.once import call_all
from gpuwarden_agent.probe import Probe, ProbeError, Row
from gpuwarden_agent.queue.spool import FILE_NAME, FORMAT_VERSION
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.address import HttpAddress
from gpuwarden_agent.ship.credentials import Access, Credentials, why_refused

READS = 20
GAP_S = 0.02
"""Between two reads of a probe, so that the probe of the processes gets a GPU that is read as well."""
LIMIT_S = 30.0
"""Time limit for all reads of a probe."""
COLLECTOR_LIMIT_S = 5.0
ANSWER_BYTES_MAX = 10_000
SKEW_S_MAX = 2.0
"""Clocks further apart than this put events in the wrong order; the collector's header has whole seconds."""

BACKLOG_S = 300.0
"""A batch that has waited for longer is a backlog."""
REFUSED_LATELY_S = 86_400.0

CAP_SYS_PTRACE = 19


@runtime_checkable
class ReportsCalls(Protocol):
    """A probe that times the calls that it makes."""

    def calls(self) -> Sequence[CallReport]:
        """One row a call, since the probe was made."""
        ...


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call of a source costs."""

    source: str
    """Name of the probe; of several with the same answer "gpu0 ... gpu7"."""
    report: CallReport


# Calls.


def examine(
    probes: Sequence[Probe], clock: Clock, *, reads: int = READS, limit_s: float = LIMIT_S
) -> tuple[list[CallCost], list[Check]]:
    """Read every probe `reads` times, all at the same time, each on its own thread.

    Blocks for at most `limit_s` for the descriptions and as long for the readings. A probe that fails or does not answer is a failed check.
    """
    timed: dict[str, list[float]] = {probe.name: [] for probe in probes}

    def ask(probe: Probe) -> bool:
        for _ in range(reads):
            began_s = clock.monotonic()
            probe.read(to_ms(clock.now()))
            timed[probe.name].append(1000 * (clock.monotonic() - began_s))
            time.sleep(GAP_S)
        return True

    rows: dict[str, Sequence[Row]] = {}

    def described(probe: Probe) -> bool:
        rows[probe.name] = probe.describe().get("gpus", ())
        return True

    real = [probe for probe in probes if not probe.simulated]
    # All are described first: the first calls about a GPU that sleeps take seconds, in which the
    # processes on it cannot be read.
    first = call_all(real, described, limit_s)
    read = call_all([p for p in real if first.get(p.name) is True], ask, limit_s)
    answers = {name: read.get(name) if said is True else said for name, said in first.items()}
    checks = [_answered(probe.name, answers.get(probe.name), limit_s) for probe in real]
    checks += check_gpus([row for probe in real for row in rows.get(probe.name, ())])
    calls = [CallCost(probe.name, report) for probe in real for report in _reports(probe, timed)]
    return merged(calls), checks


VIRTUAL: Mapping[str, tuple[str, str, str]] = {
    "passthrough": (
        OK,
        "passed through to this virtual machine: NVLinks and NUMA nodes are those that the machine is given",
        "",
    ),
    "vgpu": (
        WARN,
        "a vGPU of this virtual machine: its driver leaves out what belongs to the whole GPU, such as power,"
        + " temperature, clocks, ECC, PCIe and NVLink; these columns are NULL",
        "run an agent on the host of the virtual machine for them",
    ),
    "host_vgpu": (
        OK,
        "shared by vGPUs of virtual machines: processes in them are not seen from here",
        "",
    ),
    "host_vsga": (OK, "shared by virtual machines: processes in them are not seen from here", ""),
}
"""Status, finding and remedy by `gpus.virtualization`."""


def check_gpus(rows: Sequence[Row]) -> list[Check]:
    """Check why GPUs tell less than others, and which rack they are in. `rows`: those of `gpus`."""
    checks = []
    for mode, (status, finding, remedy) in VIRTUAL.items():
        if names := _names(row for row in rows if row.get("virtualization") == mode):
            checks.append(Check("virtualization", status, f"{names}: {finding}", remedy))
    in_rack = [row for row in rows if row.get("chassis_serial") or row.get("fabric_cluster_uuid")]
    trays: dict[str, list[Row]] = {}
    for row in in_rack:
        words = [
            f"{word} {row[column]}"
            for word, column in (("chassis", "chassis_serial"), ("tray", "tray"), ("slot", "slot"))
            if row.get(column) is not None
        ]
        if row.get("fabric_cluster_uuid"):
            words.append(f"NVLink domain {row['fabric_cluster_uuid']}")
        trays.setdefault(", ".join(words), []).append(row)
    for place, found in trays.items():
        alone = [row for row in found if not row.get("fabric_cluster_uuid")]
        if alone:
            finding = f"{_names(alone)}: {place}; not registered with an NVLink domain"
            remedy = (
                "`nvidia-smi -q | grep -A5 Fabric`; read the log of the fabric manager and of IMEX"
            )
            checks.append(Check("rack", WARN, finding, remedy))
        else:
            checks.append(Check("rack", OK, f"{_names(found)}: {place}"))
    return checks


def _names(rows: Iterable[Row]) -> str:
    """GPU 0, 1, 2; empty: none."""
    found = sorted({gpu for row in rows if isinstance(gpu := row.get("gpu"), int)})
    return f"GPU {', '.join(map(str, found))}" if found else ""


def _answered(name: str, answer: bool | ProbeError | None, limit_s: float) -> Check:
    match answer:
        case None:
            remedy = (
                "look for an Xid in the kernel's log; if it stays, drain the node and reboot it"
            )
            return Check(name, FAIL, f"no answer within {limit_s:g} s", remedy)
        case ProbeError():
            return Check(name, FAIL, str(answer))
    return Check(name, OK, "answers")


def _reports(probe: Probe, timed: dict[str, list[float]]) -> list[CallReport]:
    took_ms = list(timed[probe.name])
    whole = CallReport(
        call="(a whole reading)",
        reading=", ".join(probe.tables),
        supported=bool(took_ms),
        code="SUCCESS" if took_ms else "NO_ANSWER",
        p50_ms=quantile(took_ms, 0.5),
        p99_ms=quantile(took_ms, 0.99),
        count=len(took_ms),
        tier_s=min(probe.tables.values(), default=1),
    )
    return [whole, *(probe.calls() if isinstance(probe, ReportsCalls) else ())]


def merged(calls: Sequence[CallCost]) -> list[CallCost]:
    """Merge calls with the same answer from several sources, with the slowest timings. Sorted by tier,
    unsupported calls last.
    """
    together: dict[tuple[object, ...], list[CallCost]] = {}
    for call in calls:
        r = call.report
        key = (r.call, r.reading, r.supported, r.code, r.tier_s)
        together.setdefault(key, []).append(call)
    rows = [_slowest(several) for several in together.values()]
    return sorted(rows, key=lambda c: (not c.report.supported, c.report.tier_s))


def _slowest(several: Sequence[CallCost]) -> CallCost:
    names = [call.source for call in several]
    source = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
    reports = [call.report for call in several]
    return CallCost(
        source,
        replace(
            reports[0],
            p50_ms=_highest(r.p50_ms for r in reports),
            p99_ms=_highest(r.p99_ms for r in reports),
            count=sum(r.count for r in reports),
        ),
    )


def _highest(timings: Iterable[float | None]) -> float | None:
    return max((t for t in timings if t is not None), default=None)


# The host.


def check_host(
    settings: AgentSettings,
    clock: Clock,
    *,
    root: Path = Path("/"),
    has_nvidia: bool,
) -> list[Check]:
    """Check what the agent needs from the host. `has_nvidia`: the host has NVIDIA GPUs.

    Blocks for some seconds where the collector does not answer.
    """
    checks = [
        *((check(root) for check in _OF_LINUX) if sys.platform == "linux" else ()),
        _check_pod_resources(root),
        _check_pod_names(settings, clock),
        _check_cloud(settings, root, clock),
        _check_state_dir(settings),
        _check_spool(settings, clock),
        check_unit("service", "agent"),
        _check_authority(settings, clock),
        *(
            _check_collector(url, clock, Access(settings.token_file, settings.tls_ca))
            for url in settings.collectors
        ),
        *(_check_certificate(url, clock, settings) for url in settings.collectors),
    ]
    if has_nvidia:
        checks.insert(0, _check_kernel_log(root))
    return [check for check in checks if check is not None]


def _check_kernel_log(root: Path) -> Check:
    path = root / "dev/kmsg"
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return Check(
            "kernel_log",
            WARN,
            "there is no /dev/kmsg, as in a container: Xids come from the driver's events alone",
            "give the container the device, to know process and text of an Xid",
        )
    except OSError as error:
        return Check(
            "kernel_log",
            WARN,
            f"/dev/kmsg: {error.strerror}: Xids come from the driver's events alone",
            "give the agent CAP_SYSLOG (docs/xids.md has the drop-in)",
        )
    return Check("kernel_log", OK, "Xids are read with process and text")


def _check_process_io(root: Path) -> Check:
    if _has_capability(root, CAP_SYS_PTRACE):
        return Check("process_io", OK, "storage reads of all users' processes are seen")
    return Check(
        "process_io",
        WARN,
        "read_bytes_total stays absent for processes of other users",
        "give the agent CAP_SYS_PTRACE, to recognise jobs that storage slows",
    )


def _check_energy(root: Path) -> Check | None:
    zones = find_zones(root / "sys")
    if not zones:
        return None
    unreadable = [zone for zone in zones if not os.access(zone.path / "energy_uj", os.R_OK)]
    if not unreadable:
        return Check("cpu_energy", OK, f"{len(zones)} counters of CPUs and memory are read")
    return Check(
        "cpu_energy",
        WARN,
        f"{unreadable[0].path / 'energy_uj'} may not be read: the energy of CPUs and memory is not known",
        "give the agent CAP_DAC_READ_SEARCH, or its group the file (chgrp gpuwarden, chmod g+r)",
    )


def _check_hidepid(root: Path) -> Check | None:
    for line in _lines(root / "proc/self/mounts"):
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/proc" and _hides(fields[3]):
            if _has_capability(root, CAP_SYS_PTRACE):
                return None
            return Check(
                "processes",
                WARN,
                "/proc is mounted with hidepid: owners of other users' processes are not seen",
                "mount it with gid= of a group that the agent is in, or give it CAP_SYS_PTRACE",
            )
    return None


def _hides(options: str) -> bool:
    return any(
        option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off")
        for option in options.split(",")
    )


def _check_pressure(root: Path) -> Check:
    if (root / "proc/pressure/io").exists():
        return Check("pressure", OK, "the kernel tells what tasks wait for")
    return Check(
        "pressure",
        WARN,
        "there is no /proc/pressure: psi_* columns stay absent",
        "boot with psi=1 (kernel 4.20 or newer)",
    )


_OF_LINUX = (_check_process_io, _check_hidepid, _check_pressure, _check_energy)


def _check_pod_resources(root: Path) -> Check | None:
    path = root / "var/lib/kubelet/pod-resources/kubelet.sock"
    if not is_there(path):
        return None
    if os.access(path, os.R_OK | os.W_OK):
        return Check("pod_resources", OK, "kubelet tells which pod has which GPU")
    return Check(
        "pod_resources",
        WARN,
        f"{path} may not be opened: GPUs that a pod has and does not use are not seen",
        "run the agent as root, or give its user the socket (setfacl -m u:gpuwarden:rw)",
    )


def _check_pod_names(settings: AgentSettings, clock: Clock) -> Check | None:
    try:
        directory = pod_directory(settings, clock)
    except ValueError as error:
        return Check("pod_names", FAIL, str(error), 'correct it, or set kubernetes = "off"')
    if directory is None:
        return None
    directory.refresh()
    if not directory.failed:
        return Check("pod_names", OK, "owners and labels of pods are known")
    return Check(
        "pod_names",
        WARN,
        "; ".join(directory.failed),
        'rows have namespace and pod alone; docs/kubernetes.md has the rights, kubernetes = "off" asks nobody',
    )


def _check_cloud(settings: AgentSettings, root: Path, clock: Clock) -> Check | None:
    host = cloud_host(root / "sys", clock, ask_metadata=settings.cloud_metadata)
    if host is None:
        return None
    told = ", ".join(f"{name} {value}" for name, value in host.row().items())
    if host.error is None:
        more = "" if settings.cloud_metadata else "; its metadata is not asked (cloud_metadata)"
        return Check("cloud", OK, f"{told}{more}")
    return Check(
        "cloud",
        WARN,
        f"{told}; the metadata service does not tell more: {host.error}",
        "let this process reach 169.254.169.254 (from a pod: hostNetwork, or a hop limit of 2), or set"
        " cloud_metadata = false",
    )


def _check_state_dir(settings: AgentSettings) -> Check:
    folder = settings.state_dir
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
        stat = os.statvfs(existing)
    except OSError as error:
        remedy = "give the agent's user the folder, or set state_dir"
        return Check("state_dir", FAIL, f"{folder} cannot be written: {error.strerror}", remedy)
    free = stat.f_bavail * stat.f_frsize
    if free < settings.spool_bytes_max:
        finding = f"{folder} has {size_text(free)} free of {size_text(settings.spool_bytes_max)} that it may need"
        return Check("state_dir", WARN, finding, "make room, or set spool_bytes_max lower")
    return Check("state_dir", OK, f"{folder} can be written, {size_text(free)} free")


def _check_spool(settings: AgentSettings, clock: Clock) -> Check | None:
    path = settings.state_dir / FILE_NAME
    try:
        if not path.exists():
            return None
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > FORMAT_VERSION:
                finding = f"{path} was written by a newer gpuwarden (version {version})"
                return Check("spool", FAIL, finding, "install the newer version again")
            waiting = db.execute(
                "SELECT count(*), coalesce(sum(length(body)), 0), min(created_ms) FROM batches"
            ).fetchone()
            since_ms = to_ms(clock.now()) - int(1000 * REFUSED_LATELY_S)
            refused = db.execute(
                "SELECT count(*), max(reason) FROM refused WHERE refused_ms > ?", (since_ms,)
            ).fetchone()
    except (OSError, sqlite3.Error) as error:
        remedy = "run this as the agent's user, or as root"
        return Check("spool", WARN, f"{path} cannot be read: {error}", remedy)
    return _spool(settings, clock, waiting, refused)


def _spool(
    settings: AgentSettings,
    clock: Clock,
    waiting: tuple[int, int, int | None],
    refused: tuple[int, str | None],
) -> Check:
    count, size, oldest_ms = waiting
    if oldest_ms is None:
        finding = "nothing waits for the collector"
    else:
        age_s = (clock.now() - from_ms(oldest_ms)).total_seconds()
        finding = f"{count} batches wait ({size_text(size)}), the oldest for {span(age_s)}"
        if size > 0.9 * settings.spool_bytes_max:
            remedy = "bring the collector back, or set spool_bytes_max higher"
            return Check("spool", FAIL, f"{finding}: it is full, the oldest are lost", remedy)
        if age_s > BACKLOG_S:
            return Check("spool", WARN, finding, "`journalctl -u gpuwarden-agent` says why")
    if refused[0]:
        finding += f"; {refused[0]} were refused since yesterday: {refused[1]}"
        return Check("spool", WARN, finding, "compare versions and clocks of agent and collector")
    return Check("spool", OK, finding)


def _check_authority(settings: AgentSettings, clock: Clock) -> Check | None:
    """Validity of the authority that the agent trusts; the collector's check reports an unreadable file."""
    if settings.tls_ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except (OSError, ssl.SSLError):
        return None
    ends = [_instant(found["notAfter"]) for found in context.get_ca_certs()]
    if not ends:
        return None
    remedy = "`gpuwarden enroll` again, once the collector has a new authority"
    return check_life("authority", f"{settings.tls_ca}", max(ends), clock.now(), remedy)


def _check_certificate(url: str, clock: Clock, settings: AgentSettings) -> Check | None:
    """Validity of the collector's certificate; the collector's check reports one that is not trusted."""
    try:
        where = HttpAddress.parse(url)
        if not where.is_tls:
            return None
        context = Credentials(Access(None, settings.tls_ca)).tls_context()
        with (
            socket.create_connection((where.host, where.port), COLLECTOR_LIMIT_S) as sock,
            context.wrap_socket(sock, server_hostname=where.host) as connection,
        ):
            found = connection.getpeercert()
    except (OSError, ValueError, StartError):
        return None
    if not found:
        return None
    remedy = "`gpuwarden collector init --renew` on the collector's host"
    ends_at = _instant(found["notAfter"])
    return check_life("certificate", f"that of {where.shown('')}", ends_at, clock.now(), remedy)


def _instant(text: object) -> datetime:
    """An instant as OpenSSL writes it in a certificate."""
    return from_ms(1000 * int(ssl.cert_time_to_seconds(str(text))))


def _check_collector(url: str, clock: Clock, access: Access) -> Check:
    try:
        where = HttpAddress.parse(url)
    except ValueError:
        return Check("collector", FAIL, "collector_url is not an address", "set collector_url")
    url = where.shown("")  # without a password that may be in it
    address = f"{url}/healthz"
    try:
        credentials = Credentials(access)
        # Like the agent, ignore a proxy of the environment.
        ours = opener(credentials.tls_context(), uses_proxy=False)
    except StartError as error:
        return Check("collector", FAIL, str(error), "gpuwarden enroll")
    try:
        began_s = clock.monotonic()
        with ours.open(address, timeout=COLLECTOR_LIMIT_S) as answer:
            body, date = answer.read(1000), answer.headers.get("Date")
        took_ms = 1000 * (clock.monotonic() - began_s)
        is_ours = "status" in json.loads(body)
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = why_refused(cause)
        remedy = "start the collector, or set collector_url; samples wait in the spool meanwhile"
        return Check("collector", FAIL, f"{address}: {reason}", remedy)
    if not is_ours:
        finding = f"{address} answers, but not as a collector does"
        return Check("collector", FAIL, finding, "set collector_url")
    if date is not None:
        skew_s = clock.now().timestamp() - parsedate_to_datetime(date).timestamp()
        if abs(skew_s) > SKEW_S_MAX:
            way = "ahead of" if skew_s > 0 else "behind"
            finding = f"this clock is {span(abs(skew_s))} {way} the collector's"
            return Check("collector", WARN, finding, "run chrony or ntpd on both")
    if (refusal := _token_refusal(where, ours, credentials)) is not None:
        return Check("collector", FAIL, f"{url}: {refusal}", "gpuwarden enroll")
    return Check("collector", OK, f"{url} answers in {took_ms:.0f} ms")


def _token_refusal(
    where: HttpAddress, ours: urllib.request.OpenerDirector, credentials: Credentials
) -> str | None:
    """Why the collector would refuse this agent's batches; None: it accepts them, or gives no answer."""
    request = urllib.request.Request(where.shown(TOKEN_PATH))
    if (authorization := credentials.authorization or where.authorization) is not None:
        request.add_header("Authorization", authorization)
    try:
        with ours.open(request, timeout=COLLECTOR_LIMIT_S) as answer:
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        if error.code != 401:
            return None
        sentence = error_sentence(error.read(ANSWER_BYTES_MAX))
        return sentence or "it asks for a token that this agent does not have"
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("scope") not in ("read", "enroll"):
        return None
    return f"the agent's token has scope {found['scope']}; it needs ingest"


def _has_capability(root: Path, number: int) -> bool:
    for line in _lines(root / "proc/self/status"):
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
