"""The line that says how far a command is, on a real terminal and beside it."""

import os
import pty
import subprocess
import sys

SCRIPT = """
import time
from gpuwarden_cli.progress import progress
with progress("copying", 10) as bar:
    bar.done, bar.text = 5, "the store"
    time.sleep(0.7)
    with bar.paused():
        print("one result", flush=True)
print("done")
"""


def test_a_terminal_sees_it_and_has_it_removed() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdout=theirs,
        stderr=theirs,
        env=environment,
        timeout=30,
        check=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # as Linux says that the other side is closed
    os.close(ours)
    assert run.returncode == 0
    text = shown.decode()
    assert "copying  ━━━━━━━━━━━━────────────  50 %  the store" in text
    assert "\r\x1b[2Kone result" in text
    assert text.endswith("\r\x1b[2Kdone\r\n")


def test_nothing_is_shown_where_nobody_looks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=True
    )
    assert (run.stdout, run.stderr) == ("one result\ndone\n", "")
