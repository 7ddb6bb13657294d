"""What the agent can read on this host, what each call costs, and what is in its way.

`examine` asks every probe some times, as the sampler does, and `check_host` looks at what the agent
needs from the host: permissions, the spool's disk, the collector. Nothing is written but a file that
is deleted at once, and nothing is sent.
"""

import json
import os
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpuwarden.access import TOKEN_PATH
from gpuwarden.clock import Clock, to_ms
from gpuwarden.life import StartError
from gpuwarden_agent.credentials import Access, Credentials, why_refused
from gpuwarden_agent.events import span
from gpuwarden_agent.probe import Probe, ProbeError
from gpuwarden_agent.probes.timing import CallReport, quantile
from gpuwarden_agent.settings import AgentSettings

READS = 20
LIMIT_S = 30.0
"""What a probe may take for all its reads together."""
COLLECTOR_LIMIT_S = 5.0
ANSWER_BYTES_MAX = 10_000
SKEW_S_MAX = 2.0
"""Clocks further apart than this mix up what happened first; the collector's header has seconds."""

OK, DEGRADED, FAILED = "ok", "degraded", "failed"

CAP_SYS_PTRACE, CAP_SYSLOG = 19, 34


@runtime_checkable
class ReportsCalls(Protocol):
    """A probe that times the calls that it makes."""

    def calls(self) -> Sequence[CallReport]:
        """One row a call, since the probe was made."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """What one call of a source costs."""

    source: str
    """Name of the probe; of several with the same answer "gpu0 ... gpu7"."""
    report: CallReport


@dataclass(frozen=True, slots=True)
class Check:
    """Something that the agent needs, and whether it has it."""

    name: str
    status: str
    """ok; degraded: the agent goes on without; failed: samples are lost or do not arrive."""
    finding: str
    remedy: str = ""


# Calls.


def examine(
    probes: Sequence[Probe], clock: Clock, *, reads: int = READS, limit_s: float = LIMIT_S
) -> tuple[list[Call], list[Check]]:
    """Ask every probe `reads` times, all at once, each on a thread of its own.

    Blocks for at most `limit_s`. A probe that fails or does not answer is a failed check.
    """
    troubles: dict[str, str | None] = {}
    timed: dict[str, list[float]] = {probe.name: [] for probe in probes}

    def ask(probe: Probe) -> None:
        try:
            probe.describe()
            for _ in range(reads):
                began_s = clock.monotonic()
                probe.read(to_ms(clock.now()))
                timed[probe.name].append(1000 * (clock.monotonic() - began_s))
            troubles[probe.name] = None
        except ProbeError as error:
            troubles[probe.name] = str(error)
        except Exception as error:  # noqa: BLE001  # one probe's fault must not hide the others
            troubles[probe.name] = f"{type(error).__name__}: {error}"

    # Daemon threads: a call that never returns must not keep the command from ending.
    real = [probe for probe in probes if not probe.simulated]
    threads = [threading.Thread(target=ask, args=(probe,), daemon=True) for probe in real]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    checks = [_answered(probe.name, troubles, limit_s) for probe in real]
    calls = [Call(probe.name, report) for probe in real for report in _reports(probe, timed)]
    return merged(calls), checks


def _answered(name: str, troubles: dict[str, str | None], limit_s: float) -> Check:
    if name not in troubles:
        remedy = "look for an Xid in the kernel's log; if it stays, drain the node and reboot it"
        return Check(name, FAILED, f"no answer within {limit_s:g} s", remedy)
    trouble = troubles[name]
    return Check(name, OK, "answers") if trouble is None else Check(name, FAILED, trouble)


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


def merged(calls: Sequence[Call]) -> list[Call]:
    """Calls that several sources answer alike as one, with the slowest timings; by tier, those that
    are not supported last.
    """
    together: dict[tuple[object, ...], list[Call]] = {}
    for call in calls:
        r = call.report
        key = (r.call, r.reading, r.supported, r.code, r.tier_s)
        together.setdefault(key, []).append(call)
    rows = [_slowest(several) for several in together.values()]
    return sorted(rows, key=lambda c: (not c.report.supported, c.report.tier_s))


def _slowest(several: Sequence[Call]) -> Call:
    names = [call.source for call in several]
    source = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
    reports = [call.report for call in several]
    return Call(
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
    """What the agent needs from the host. `has_nvidia`: NVIDIA GPUs are there to be watched.

    Blocks for some seconds where the collector does not answer.
    """
    checks = [
        _check_process_io(root),
        _check_hidepid(root),
        _check_pressure(root),
        _check_pod_resources(root),
        _check_state_dir(settings),
        *(
            _check_collector(url, clock, Access(settings.token_file, settings.tls_ca))
            for url in settings.collectors
        ),
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
            DEGRADED,
            "there is no /dev/kmsg, as in a container: Xids come from the driver's events alone",
            "give the container the device, to know process and text of an Xid",
        )
    except OSError as error:
        return Check(
            "kernel_log",
            DEGRADED,
            f"/dev/kmsg: {error.strerror}: Xids come from the driver's events alone",
            "give the agent CAP_SYSLOG (docs/xids.md has the drop-in)",
        )
    return Check("kernel_log", OK, "Xids are read with process and text")


def _check_process_io(root: Path) -> Check:
    if _has_capability(root, CAP_SYS_PTRACE):
        return Check("process_io", OK, "storage reads of all users' processes are seen")
    return Check(
        "process_io",
        DEGRADED,
        "read_bytes_total and command stay absent for processes of other users",
        "give the agent CAP_SYS_PTRACE, if jobs slow by storage are to be told apart",
    )


def _check_hidepid(root: Path) -> Check | None:
    for line in _lines(root / "proc/self/mounts"):
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/proc" and _hides(fields[3]):
            if _has_capability(root, CAP_SYS_PTRACE):
                return None
            return Check(
                "processes",
                DEGRADED,
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
        DEGRADED,
        "there is no /proc/pressure: psi_* columns stay absent",
        "boot with psi=1 (kernel 4.20 or newer)",
    )


def _check_pod_resources(root: Path) -> Check | None:
    path = root / "var/lib/kubelet/pod-resources/kubelet.sock"
    try:
        is_there = path.exists()
    except PermissionError:
        is_there = True
    if not is_there:
        return None
    if os.access(path, os.R_OK | os.W_OK):
        return Check("pod_resources", OK, "kubelet tells which pod has which GPU")
    return Check(
        "pod_resources",
        DEGRADED,
        f"{path} may not be opened: GPUs that a pod has and does not use are not seen",
        "run the agent as root, or give its user the socket (setfacl -m u:gpuwarden:rw)",
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
        return Check("state_dir", FAILED, f"{folder} cannot be written: {error.strerror}", remedy)
    free = stat.f_bavail * stat.f_frsize
    if free < settings.spool_bytes_max:
        finding = (
            f"{folder} has {_size(free)} free of {_size(settings.spool_bytes_max)} that it may need"
        )
        return Check("state_dir", DEGRADED, finding, "make room, or set spool_bytes_max lower")
    return Check("state_dir", OK, f"{folder} can be written, {_size(free)} free")


def _opener(credentials: Credentials) -> urllib.request.OpenerDirector:
    """As the agent ships: past whatever proxy the environment names, and with its authorities."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=credentials.tls_context()),
    )


def _check_collector(url: str, clock: Clock, access: Access) -> Check:
    address = f"{url.rstrip('/')}/healthz"
    try:
        credentials = Credentials(access)
        opener = _opener(credentials)
    except StartError as error:
        return Check("collector", FAILED, str(error), "gpuwarden enroll")
    try:
        began_s = clock.monotonic()
        with opener.open(address, timeout=COLLECTOR_LIMIT_S) as answer:
            body, date = answer.read(1000), answer.headers.get("Date")
        took_ms = 1000 * (clock.monotonic() - began_s)
        is_ours = "status" in json.loads(body)
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = why_refused(cause)
        remedy = "start the collector, or set collector_url; samples wait in the spool meanwhile"
        return Check("collector", FAILED, f"{address}: {reason}", remedy)
    if not is_ours:
        finding = f"{address} answers, but not as a collector does"
        return Check("collector", FAILED, finding, "set collector_url")
    if date is not None:
        skew_s = clock.now().timestamp() - parsedate_to_datetime(date).timestamp()
        if abs(skew_s) > SKEW_S_MAX:
            way = "ahead of" if skew_s > 0 else "behind"
            finding = f"this clock is {span(abs(skew_s))} {way} the collector's"
            return Check("collector", DEGRADED, finding, "run chrony or ntpd on both")
    if (refusal := _token_refusal(url, opener, credentials)) is not None:
        return Check("collector", FAILED, f"{url}: {refusal}", "gpuwarden enroll")
    return Check("collector", OK, f"{url} answers in {took_ms:.0f} ms")


def _token_refusal(
    url: str, opener: urllib.request.OpenerDirector, credentials: Credentials
) -> str | None:
    """Why the collector would not take this agent's batches; None: it would, or cannot be asked."""
    request = urllib.request.Request(url.rstrip("/") + TOKEN_PATH)
    if credentials.authorization is not None:
        request.add_unredirected_header("Authorization", credentials.authorization)
    try:
        with opener.open(request, timeout=COLLECTOR_LIMIT_S) as answer:
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        if error.code != 401:
            return None
        try:
            return str(json.loads(error.read(ANSWER_BYTES_MAX))["error"])
        except (ValueError, KeyError, TypeError):
            return "it asks for a token that this agent does not have"
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


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def worst(checks: Sequence[Check]) -> str:
    """The worst status there is."""
    order: Callable[[str], int] = (OK, DEGRADED, FAILED).index
    return max((check.status for check in checks), key=order, default=OK)
