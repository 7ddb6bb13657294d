"""The command itself: on a pseudo-terminal, which it must restore, on a dumb one, into a pipe, and called wrongly."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from gpuwarden_cli.main import main; sys.exit(main())",
    "top",
]
LOCAL = ["--local", "--backend", "simulator"]
CRASHING = [
    sys.executable,
    "-c",
    """
import sys
from gpuwarden_cli.main import main
from gpuwarden_cli.top.local import LocalSource
async def ask(self, request):
    raise ZeroDivisionError('a bug')
LocalSource.ask = ask
sys.exit(main())
""",
    "top",
    *LOCAL,
]
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h")


class OnTerminal:
    """A command on a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", **environment})
            os.execv(command[0], command)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.written = b""

    def until(self, text: bytes, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while text not in self.written:
            assert time.monotonic() < end, self.written[-2000:]
            self._read(0.1)

    def _read(self, wait_s: float) -> bool:
        if not select.select([self.fd], [], [], wait_s)[0]:
            return True
        try:
            part = os.read(self.fd, 65536)
        except OSError:
            return False
        self.written += part
        return bool(part)

    def ended(self) -> int:
        """Its exit code, when all is read."""
        while self._read(30):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["q", "SIGHUP"])
def test_the_terminal_is_given_back_however_it_ends(how: str) -> None:
    terminal = OnTerminal([*COMMAND, *LOCAL])
    terminal.until(b"busy")
    match how:
        case "q":
            os.write(terminal.fd, b"q")
        case _:
            os.kill(terminal.pid, getattr(signal, how))
    assert terminal.ended() == 0
    for sequence in RESTORED:
        assert sequence in terminal.written


@pytest.mark.slow
def test_after_a_bug_the_terminal_is_given_back_and_the_error_is_told() -> None:
    terminal = OnTerminal(CRASHING)
    assert terminal.ended() == 1
    for sequence in RESTORED:
        assert sequence in terminal.written
    assert b"ZeroDivisionError" in terminal.written.rpartition(RESTORED[0])[2]


def test_json_has_every_list_and_an_absent_collector_is_exit_code_1() -> None:
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, *flags, "--once", "--json"], capture_output=True, text=True, timeout=60, check=False)  # fmt: skip

    done = run(*LOCAL)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert [row["gpu"] for row in document["gpus"]] == list(range(8))
    absent = run("--url", "http://127.0.0.1:9")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr.startswith("gpuwarden: no collector answers at http://127.0.0.1:9")
    assert absent.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_without_an_error() -> None:
    with subprocess.Popen(
        [*COMMAND, *LOCAL, "--every", "500ms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_without_the_package_it_says_how_to_get_it(monkeypatch, capsys) -> None:
    from gpuwarden_cli.main import main

    monkeypatch.setattr("gpuwarden_cli.commands.top.find_spec", lambda name: None)
    monkeypatch.setattr("gpuwarden_cli.commands.top._is_terminal", lambda: True)
    assert main(["top"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'gpuwarden[top]'" in error
    assert error.count("\n") == 1
