"""A handle kills its process and says when it has ended: by a pidfd, and by the number elsewhere."""

import subprocess
import threading

import pytest

from gpuwarden_collector.processes.forkserver import ProcessHandle


@pytest.mark.parametrize("by_number", [False, True])
def test_a_process_is_killed_once_and_its_end_is_seen(by_number: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        handle = ProcessHandle(process.pid, by_number=by_number)
        assert not handle.wait_ended(0.05)
        reaper = threading.Thread(target=process.wait)  # as the fork server does at once
        reaper.start()
        handle.kill()
        assert handle.wait_ended(10)
        reaper.join()
        handle.kill()
        handle.close()
        handle.close()
    with pytest.raises(ProcessLookupError):
        ProcessHandle(process.pid, by_number=by_number)
