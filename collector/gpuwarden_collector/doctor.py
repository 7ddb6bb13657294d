"""Checks a collector's host: files and permissions, the store, and the health of the running collector.

A running collector has the store to itself, so the doctor asks it over the socket in its data folder, which needs no
token. If none runs, the doctor opens the store for reading. It changes nothing and prints no secret.
"""

import os
import sqlite3
import ssl
import stat
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.access import Scope
from gpuwarden.clock import Clock
from gpuwarden.doctor import ENDS_SOON, FAIL, OK, WARN, Check, check_life, check_unit
from gpuwarden.http_client import opener
from gpuwarden.lifecycle import StartError
from gpuwarden.sizes import size_text
from gpuwarden.wire import error_sentence
from gpuwarden_collector.auth import token_file
from gpuwarden_collector.auth.access_control import tokens_path
from gpuwarden_collector.auth.exposure import exposure_of
from gpuwarden_collector.auth.tls import ServerTls, certificate_of
from gpuwarden_collector.auth.token_file import TokenFileError
from gpuwarden_collector.ops.health_checks import health_checks
from gpuwarden_collector.processes import control_socket as control
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.database import start_error
from gpuwarden_collector.storage.disk import free_bytes
from gpuwarden_collector.storage.extensions import extension_path
from gpuwarden_collector.storage.hot import read_tail
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import SegmentError
from gpuwarden_collector.storage.segment_log import held
from gpuwarden_collector.storage.state import FILE_NAME, SCHEMA_VERSION, newer_error

ASK_S = 30.0
HTTP_S = 5.0
ANSWER_BYTES_MAX = 10_000
_RESTART = "systemctl restart gpuwarden-collector"
_AS_ROOT = "run this as root, or as the collector's user"


@dataclass(frozen=True, slots=True)
class CollectorReply:
    """The answer of a running collector."""

    document: dict[str, Any] | None = None
    trouble: str = ""
    """Why there is no answer although a collector may run."""


def examine(settings: CollectorSettings, clock: Clock, config: Path | None) -> list[Check]:
    """Run every check that applies to this host. `config`: the file of settings, if any. Blocks for some seconds."""
    reply = _ask(settings.data_dir)
    found = [
        check_unit("service", "collector"),
        _check_running(settings, reply),
        *_check_store(settings, reply),
        _check_http(settings, reply.document) if reply.document else None,
        *_check_rights(settings, config),
        _check_room(settings, reply),
        *_check_tls(settings, clock),
        *_check_tokens(settings, clock),
        *_check_extensions(settings),
        *(health_checks(reply.document) if reply.document else ()),
    ]
    return [check for check in found if check is not None]


def _ask(data_dir: Path) -> CollectorReply:
    try:
        answer = control.ask(data_dir, "health", ASK_S)
    except TimeoutError:
        return CollectorReply(trouble=f"no answer within {ASK_S:g} s")
    except (OSError, ValueError) as error:
        return CollectorReply(trouble=getattr(error, "strerror", None) or str(error))
    if answer is not None and "error" in answer:
        return CollectorReply(trouble="it is starting, or an older version runs")
    return CollectorReply(answer)


def _check_running(settings: CollectorSettings, reply: CollectorReply) -> Check:
    name, where = "collector", settings.data_dir
    if reply.trouble:
        return Check(
            name, FAIL, f"{where / control.NAME}: {reply.trouble}", f"{_AS_ROOT}, or {_RESTART}"
        )
    document = reply.document
    if document is None:
        finding = f"no collector runs on {where}; agents keep their batches"
        return Check(name, FAIL, finding, "systemctl start gpuwarden-collector")
    # `_check_room` reports the disk. An older collector does not send this key.
    reasons = [r for check, r in document.get("not_ready", {}).items() if check != "room"]
    if reasons:
        return Check(name, FAIL, "; ".join(reasons), "journalctl -u gpuwarden-collector -p err")
    does = "stores batches, answers queries and evaluates rules"
    return Check(name, OK, f"runs on {where}: {does}")


def _check_store(settings: CollectorSettings, reply: CollectorReply) -> Iterator[Check]:
    if reply.document is not None:
        version = reply.document["schema_version"]
        yield Check("store", OK, f"open, schema version {version}")
        return
    if not settings.data_dir.exists():
        return
    try:
        found = store_version(settings.data_dir)
    except StartError as error:
        yield Check(
            "store", FAIL, str(error), "see docs/operate.md, versions, and docs/store.md, damage"
        )
        return
    finding = "there is no store yet" if found is None else f"can be opened, schema version {found}"
    yield Check("store", OK, finding)


def _check_http(settings: CollectorSettings, document: Mapping[str, Any]) -> Check | None:
    """Whether the collector answers at its address; the agents' doctor checks its names."""
    if (known := document.get("url")) is None and settings.port == 0:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"
    # Its command line may set another port.
    url = f"{known or url}/healthz"
    scheme = url.partition(":")[0]
    # The request has no secret, so the certificate is not verified.
    context = ssl._create_unverified_context() if scheme == "https" else None
    try:
        with opener(context, uses_proxy=False).open(url, timeout=HTTP_S) as answer:
            answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        return Check("http", FAIL, f"{url}: {_reason(error)}", "journalctl -u gpuwarden-collector")
    except OSError as error:
        why = getattr(error, "reason", None) or error
        return Check("http", FAIL, f"{url}: {getattr(why, 'strerror', None) or why}", _RESTART)
    return Check("http", OK, f"{url} answers")


def _reason(error: urllib.error.HTTPError) -> str:
    return error_sentence(error.read(ANSWER_BYTES_MAX)) or f"it answers {error.code}"


def _check_rights(settings: CollectorSettings, config: Path | None) -> Iterator[Check]:
    if config is not None and (found := _stat(config)) is not None and found.st_mode & 0o022:
        finding = f"others than the owner can change {config}"
        yield Check("settings", FAIL, finding, f"chmod 0640 {config}")
    folder = settings.data_dir
    try:
        entries = [(path, path.lstat()) for path in folder.iterdir()]
        owner = folder.stat()
    except FileNotFoundError:
        yield Check(
            "data_dir", FAIL, f"{folder} does not exist", f"mkdir {folder}, or set data_dir"
        )
        return
    except OSError as error:
        yield Check("data_dir", FAIL, f"{folder}: {error.strerror}", _AS_ROOT)
        return
    others = [path for path, found in entries if found.st_uid != owner.st_uid]
    if others:
        finding = f"{others[0]} does not belong to the owner of {folder}: the collector may be unable to write it"
        remedy = f"chown -R --reference={folder} {folder}"
        yield Check("data_dir", FAIL, finding, remedy)
    elif owner.st_mode & 0o007:
        finding = f"every user of this host can open {folder}"
        yield Check("data_dir", WARN, finding, f"chmod 0750 {folder}")
    else:
        yield Check("data_dir", OK, f"{folder} and its files belong to one user")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _check_room(settings: CollectorSettings, reply: CollectorReply) -> Check | None:
    least, name, remedy = (
        settings.disk_free_bytes_min,
        "disk",
        "make room, or lower keep_samples_days",
    )
    sample = reply.document["sample"] if reply.document else {}
    if sample.get("refusal"):
        return Check(name, FAIL, f"batches are refused: {sample['refusal']}", remedy)
    try:
        free = free_bytes(settings.data_dir)
    except OSError:
        return None
    finding = f"{size_text(free)} free; below {size_text(least)} batches are refused"
    if free < least:
        return Check(name, FAIL, finding, remedy)
    if free < 2 * least:
        return Check(
            name, WARN, f"{finding}, and now the oldest days of samples are deleted", remedy
        )
    used, most = sample.get("disk_used_bytes"), settings.disk_bytes_max
    if used is not None and most:
        finding += f"; the store uses {size_text(used)} of disk_bytes_max {size_text(most)}"
    return Check(name, OK, finding)


def _check_tls(settings: CollectorSettings, clock: Clock) -> Iterator[Check]:
    try:
        exposure_of(settings)
    except StartError as error:
        yield Check("exposure", FAIL, str(error), "gpuwarden collector init")
    if settings.tls_cert is not None and settings.tls_key is not None:
        remedy = "`gpuwarden collector init --renew`, or renew it with your authority"
        try:
            ends_at = ServerTls(settings.tls_cert, settings.tls_key).certificate.ends_at
        except StartError as error:
            yield Check("certificate", FAIL, str(error), f"{_AS_ROOT}, or {remedy}")
        else:
            yield check_life("certificate", str(settings.tls_cert), ends_at, clock.now(), remedy)
        yield from _check_key(settings.tls_key)
    if settings.tls_ca is not None:
        remedy = "create a new one in another folder (`gpuwarden collector init --dir`) and enroll the nodes again"
        try:
            ends_at = certificate_of(settings.tls_ca).ends_at
        except ValueError as error:
            yield Check("authority", FAIL, str(error), "set tls_ca: no node can enroll without it")
        else:
            yield check_life("authority", str(settings.tls_ca), ends_at, clock.now(), remedy)
        yield from _check_key(settings.tls_ca.with_name("ca.key"))


def _check_key(path: Path) -> Iterator[Check]:
    found = _stat(path)
    if found is not None and found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        finding = (
            f"every user of this host can read {path}, and who has it can pose as the collector"
        )
        yield Check("key", FAIL, finding, f"chmod 0600 {path}, and create new keys")


def _check_tokens(settings: CollectorSettings, clock: Clock) -> Iterator[Check]:
    path, name = tokens_path(settings), "tokens"
    try:
        asks = exposure_of(settings).asks_tokens
        entries = token_file.load(path).entries
    except StartError:
        return
    except TokenFileError as error:
        yield Check(name, FAIL, str(error))
        return
    if not entries:
        finding = f"{path} has none" + (
            ": every request is denied" if asks else ", and none is required"
        )
        yield Check(
            name, FAIL if asks else OK, finding, "gpuwarden token enrolment" if asks else ""
        )
        return
    found = _stat(path)
    if found is not None and found.st_mode & 0o077:
        yield Check(name, WARN, f"others than the owner can read {path}", f"chmod 0600 {path}")
        return
    now = clock.now()
    ending = sorted(
        (entry.expires_at, entry.id, entry.node or "any node")
        for entry in entries
        if entry.scope is Scope.INGEST and entry.expires_at and entry.expires_at - now <= ENDS_SOON
    )
    if ending:
        ends_at, token, node = ending[0]
        more = f", and {len(ending) - 1} more" if len(ending) > 1 else ""
        finding = f"token {token} of {node} expires on {ends_at:%Y-%m-%d}{more}"
        yield Check(name, WARN, finding, f"gpuwarden token rotate {token}")
        return
    yield Check(name, OK, f"{path} has {len(entries)}" + ("" if asks else ", and none is required"))


def _check_extensions(settings: CollectorSettings) -> Iterator[Check]:
    wanted = ["ducklake"]
    wanted += ["postgres_scanner"] if settings.catalog else []
    wanted += ["httpfs"] if (settings.data or "").startswith("s3://") else []
    for name in wanted:
        try:
            extension_path(name)
        except FileNotFoundError as error:
            yield Check(
                "extensions", FAIL, str(error), "install the bundle again, or the package named"
            )
            return
    yield Check("extensions", OK, f"{', '.join(wanted)}: same version as DuckDB")


def store_version(data_dir: Path) -> int | None:
    """Read the schema version of the store in a folder; None: there is no store yet. Changes nothing.

    Raises StartError for a store that a process uses, that is damaged, or that is newer than this build.
    """
    path, catalogue = data_dir / FILE_NAME, data_dir / FOLDER / CATALOGUE
    if not path.exists():
        return None
    with held(data_dir):
        version = _one(path, "SELECT value FROM meta WHERE name = 'schema_version'")
        if version > SCHEMA_VERSION:
            raise newer_error(path, version)
        if catalogue.exists():
            _one(catalogue, "SELECT count(*) FROM ducklake_snapshot")
        try:
            read_tail(data_dir / SEGMENTS, 0)
        except (SegmentError, OSError) as error:
            raise start_error(data_dir, error) from error
    return version


def _one(path: Path, sql: str) -> int:
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            row = connection.execute(sql).fetchone()
    except sqlite3.Error as error:
        raise start_error(path, error) from error
    return int(row[0] or 0) if row else 0
