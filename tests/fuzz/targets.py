"""Lists the decoders of foreign bytes, and the errors that each may raise, for tests/fuzz/test_fuzz.py.

Each target takes any bytes. What it does not list under `refuses` is a finding, and so is whatever takes more than
TIMEOUT_S or MEMORY_MIB (`one.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

_NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads bytes of others."""

    makes: Callable[[], Callable[[bytes], object]]
    """Imports what it needs, which is then followed line by line, and gives what is called."""
    refuses: tuple[str, ...] = ()
    """Names of the exceptions that say that the bytes are none."""
    seeds: tuple[bytes, ...] = ()
    more_seeds: Callable[[], Iterable[bytes]] = tuple


def text_of(data: bytes) -> str:
    """Any text, half characters as �."""
    return data.decode(errors="replace")


@cache
def _path() -> Path:
    return Path(mkdtemp(prefix="gpuwarden-fuzz-")) / "file"


def _of_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        _path().write_bytes(data)
        return read(_path())

    return run


def _batch(encoding: str) -> Callable[[], Callable[[bytes], object]]:
    def make() -> Callable[[bytes], object]:
        from gpuwarden_collector.ingest.admit import checked, window
        from gpuwarden_collector.ingest.decode import Decoded, decode

        admitted = window(_NOW, 14 * 86_400, 300)

        def run(data: bytes) -> object:
            found = decode(data, encoding)
            return checked(found.tables, admitted) if isinstance(found, Decoded) else found

        return run

    return make


def _batches() -> Iterable[bytes]:
    import pyarrow as pa

    from gpuwarden.wire import TABLE_KEY
    from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS

    for name, schema in WIRE_SCHEMAS.items():
        sink = pa.BufferOutputStream()
        table = schema.with_metadata({TABLE_KEY: name}).empty_table()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield sink.getvalue().to_pybytes()


def _packed_batches() -> Iterable[bytes]:
    import zstandard

    return map(zstandard.compress, _batches())


def _messages() -> Callable[[bytes], object]:
    from gpuwarden_postgres.messages import MessageReader

    def run(data: bytes) -> object:
        reader = MessageReader()
        for piece in (data[:7], data[7:]):
            reader.feed(piece)
            while reader.next() is not None:
                reader.bytes_max = 65_536
        assert reader.buffered_bytes <= len(data)
        return None

    return run


def _statements() -> Callable[[bytes], object]:
    from gpuwarden_collector.query.statement import split as parts_of
    from gpuwarden_postgres.statements import command_of, split, without_type_schema

    def run(data: bytes) -> object:
        sql = text_of(data)
        parts_of(sql)
        without_type_schema(sql)
        return [command_of(one) for one in split(sql)]

    return run


def _scram() -> Callable[[bytes], object]:
    from gpuwarden.scram import Exchange, Verifier

    verifier = Verifier.of("secret", b"salt" * 4)

    def run(data: bytes) -> object:
        first, _, last = data.partition(b"\0")
        exchange = Exchange(verifier, "nonce")
        exchange.first(first)
        assert exchange.final(last) is None, "a client without the password is admitted"
        return None

    return run


def _guard() -> Callable[[bytes], object]:
    import duckdb

    from gpuwarden_collector.query import guard
    from gpuwarden_collector.query.execute import parse

    cursor = duckdb.connect(config={"threads": 1, "memory_limit": "512MiB"})

    def run(data: bytes) -> object:
        sql = text_of(data)
        guard.check_text(sql)
        parsed = parse(cursor, sql)
        return guard.check(parsed)

    return run


def _sql_request() -> Callable[[bytes], object]:
    from gpuwarden_collector.http.sql import sql_request_of

    return lambda data: sql_request_of(data, "application/json", "text/csv")


def _segment() -> Callable[[bytes], object]:
    import pyarrow as pa

    from gpuwarden_collector.storage.segment import frames_of, next_frame

    def run(data: bytes) -> object:
        content = pa.py_buffer(data)
        return [*frames_of(content, 0, 0), next_frame(content, 0, 1, 0)]

    return run


def _segment_header() -> Callable[[bytes], object]:
    from gpuwarden_collector.storage.segment import read_header

    return _of_file(read_header)


def _tokens() -> Callable[[bytes], object]:
    from gpuwarden_collector.auth.token_file import load

    return _of_file(load)


def _token() -> Callable[[bytes], object]:
    from gpuwarden.access import Token

    return lambda data: Token.parse(text_of(data))


def _rules() -> Callable[[bytes], object]:
    from gpuwarden_rules.definition.language import parse_leniently

    return lambda data: parse_leniently(text_of(data), "rules.yaml")


def _built_in_rules() -> Iterable[bytes]:
    from gpuwarden_rules.definition.language import builtin_paths

    return (path.read_bytes()[:4_000] for path in builtin_paths())


def _template() -> Callable[[bytes], object]:
    from gpuwarden_rules.definition.templates import parse

    return lambda data: parse(text_of(data))


def _prices() -> Callable[[bytes], object]:
    from gpuwarden_collector.ingest.prices import load_book

    return _of_file(load_book)


def _collector_settings() -> Callable[[bytes], object]:
    from gpuwarden.settings import load
    from gpuwarden_collector.settings import CollectorSettings

    return _of_file(lambda path: load(CollectorSettings, "collector", path=path, env={}))


def _agent_settings() -> Callable[[bytes], object]:
    from gpuwarden.settings import load
    from gpuwarden_agent.settings import AgentSettings

    return _of_file(lambda path: load(AgentSettings, "agent", path=path, env={}))


def _durations() -> Callable[[bytes], object]:
    from gpuwarden.durations import instant_before

    return lambda data: instant_before(_NOW, text_of(data), "since")


def _import() -> Callable[[bytes], object]:
    from gpuwarden_importing.detect import read
    from gpuwarden_importing.model import ImportTally, Origin
    from gpuwarden_importing.sources import opened

    def run(data: bytes) -> object:
        _path().write_bytes(data)
        origin = Origin(node="n1", at_ms=1_760_000_000_000)
        _, rows = read(opened(_path()), _path(), origin, ImportTally())
        return sum(1 for _ in rows)

    return run


def _slurm() -> Callable[[bytes], object]:
    from gpuwarden_agent.collect.schedulers.slurm_text import parse_jobs, parse_nodes

    def run(data: bytes) -> object:
        text = text_of(data)
        return parse_jobs(text), parse_nodes(text)

    return run


def _pods() -> Callable[[bytes], object]:
    from gpuwarden_agent.collect.kubernetes.pods import parse_parent, parse_pods
    from gpuwarden_agent.settings import PodLabelNames

    names = PodLabelNames(("user",), ("team",))

    def run(data: bytes) -> object:
        return parse_parent(data) if data[:1] == b" " else parse_pods(data, names)

    return run


def _kubelet() -> Callable[[bytes], object]:
    from gpuwarden_agent.collect.schedulers.kubelet import parse_list

    return parse_list


def _kernel_log() -> Callable[[bytes], object]:
    from gpuwarden_agent.events.kernel_log import parse_records
    from gpuwarden_agent.events.xid_lines import step

    def run(data: bytes) -> object:
        named = None
        for record in parse_records(data):
            _, named = step(named, record.text)
        return named

    return run


def _cgroups() -> Callable[[bytes], object]:
    from gpuwarden_agent.collect.kubernetes.pods import uid_of_cgroup
    from gpuwarden_agent.collect.processes.cgroup import (
        cpu_max,
        main_path,
        parse_mounts,
        parse_paths,
    )

    def run(data: bytes) -> object:
        text = text_of(data)
        parse_mounts(text), cpu_max(text), uid_of_cgroup(text)
        return main_path(parse_paths(text))

    return run


def _command_line() -> Callable[[bytes], object]:
    from gpuwarden_agent.collect.processes.command import program_and_script

    return program_and_script


def _printable() -> Callable[[bytes], object]:
    from gpuwarden.untrusted_text import printable

    def run(data: bytes) -> object:
        shown = printable(text_of(data))
        assert shown.isprintable() and printable(shown) == shown, repr(shown)
        return shown

    return run


def _fails() -> Callable[[bytes], Any]:
    def run(data: bytes) -> object:
        if data[:1] == b"!":
            raise RuntimeError("found")
        return None

    return run


TARGETS: dict[str, Target] = {
    "batch": Target(_batch("identity"), more_seeds=_batches),
    "batch_packed": Target(_batch("zstd"), more_seeds=_packed_batches),
    "postgres_messages": Target(
        _messages,
        ("ProtocolError",),
        (
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"\0\0\0\x13\0\x03\0\0user\0me\0\0" + b"Q\0\0\0\x0dSELECT 1\0" + b"X\0\0\0\4",
        ),
    ),
    "postgres_statements": Target(
        _statements,
        ("StatementError",),
        (b"SET x TO 'a', b; SHOW ALL", b"EXPLAIN (FORMAT json) SELECT $1::pg_catalog.int4 -- x"),
    ),
    "scram": Target(_scram, ("ScramError",), (b"n,,n=,r=abc\0c=biws,r=abcnonce,p=AAAA",)),
    "sql": Target(
        _guard,
        ("QueryError",),
        (b"SELECT max(x) FROM gpu_samples WHERE ts > now() - INTERVAL 1 DAY", b"WITH a AS (FROM gpus) FROM a"),
    ),
    "sql_request": Target(_sql_request, ("QueryError",), (b'{"sql": "SELECT $a", "params": {"a": [1, null]}}',)),
    "segment": Target(_segment, seeds=(b"\0" * 64,)),
    "segment_header": Target(_segment_header, ("SegmentError",), (b"\0" * 64,)),
    "token_file": Target(_tokens, ("TokenFileError",), (b'{"version": 1, "tokens": []}',)),
    "token": Target(_token, ("ValueError",), (b"gw_read_0123456789ab_",)),
    "rules": Target(_rules, more_seeds=_built_in_rules),
    "template": Target(_template, seeds=(b"{node} has {value:.1f} {{x}} {usd}",)),
    "prices": Target(_prices, ("PricesError", "StartError"), (b"[[price]]\nmodel = 'H100*'\nusd_per_hour = 2\n",)),
    "collector_settings": Target(_collector_settings, ("SettingsError",), (b"port = 8750\nhost = '::'\n",)),
    "agent_settings": Target(_agent_settings, ("SettingsError",), (b"collector_url = 'http://a'\nlabels = {a = 'b'}\n",)),
    "durations": Target(_durations, ("ValueError",), (b"1h30m", b"2026-03-01T00:00:00Z")),
    "import": Target(
        _import,
        ("UnreadableError",),
        (
            b"timestamp, index, uuid, utilization.gpu [%]\n2026/03/01 00:00:00.000, 0, GPU-1, 5 %\n",
            b"<?xml version='1.0'?><nvidia_smi_log><gpu id='1'><uuid>GPU-1</uuid></gpu></nvidia_smi_log>",
            b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 5 1760000000000\n',
            b"# gpu   pwr gtemp\n# Idx     W     C\n    0    50    40\n",
            b"[  1.5] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus\n",
        ),
    ),
    "slurm": Target(_slurm, seeds=(b"JobId=1 UserId=a(1) NodeList=n[1-3,7] TRES=gres/gpu=2\n", b"n[001-999]")),
    "pods": Target(_pods, ("ValueError",), (b'{"items": [{"metadata": {"uid": "1", "labels": {}}}]}', b' {"metadata": {}}')),
    "kubelet": Target(_kubelet, ("ValueError",), (b"\n\x10\n\x03pod\x12\x02ns\x1a\x05\n\x03ctr",)),
    "kernel_log": Target(_kernel_log, seeds=(b"6,1,100,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1\n SUBSYSTEM=pci\n",)),
    "cgroups": Target(_cgroups, seeds=(b"0::/kubepods/pod1/x\n", b"30 1 0:2 / /sys/fs/cgroup rw - cgroup2 c rw\n")),
    "command_line": Target(_command_line, seeds=(b"curl\0-u\0a:b\0https://x?key=1\0", b"sh\0-c\0A=1 mysql -px\0")),
    "printable": Target(_printable, seeds=("a\u202eb\x1b[31m".encode(),)),
    "fails": Target(_fails, seeds=(b"!",)),
}  # fmt: skip
"""`fails` is there to show that a finding is one; it is run when it is asked for by name."""
