"""What keeps batches from being stored is named, the gravest first."""

from dataclasses import replace

from gpuwarden_collector.ops.readiness import READY_CHECKS, not_ready
from gpuwarden_collector.stats import Levels

READY = Levels(
    queue_bytes=0, body_bytes_in_flight=0, database_bytes=0, is_alive=True, is_failing=False
)


def test_each_check_finds_its_own_fault_and_all_are_listed() -> None:
    assert not_ready(READY) == {}
    troubles = {
        "writer": {"is_alive": False},
        "decode": {"is_decoding": False},
        "commit": {"is_failing": True},
        "storage": {"storage_trouble": "rows do not move"},
        "clock": {"clock_doubt": "agents disagree"},
        "room": {"disk_refusal": "the disk is full"},
    }
    assert list(troubles) == [check.name for check in READY_CHECKS]
    for name, values in troubles.items():
        assert [check.name for check in not_ready(replace(READY, **values))] == [name]
    everything = {key: value for values in troubles.values() for key, value in values.items()}
    found = not_ready(replace(READY, **everything))
    assert [check.name for check in found] == list(troubles)
    assert all("\n" not in reason for reason in found.values())
