"""Who suffers from a new alert of a GPU is looked up where its row does not say it."""

from datetime import UTC, datetime, timedelta

from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.evaluation.holders import rows_with_holders
from gpuwarden_rules.evaluation.state import step

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
(RULE,) = parse(
    """
    rules:
      - {name: r, severity: info, labels: [node, gpu_uuid], summary: "{node}", remedy: r, sql: "SELECT $now"}
    """,
    "r.yaml",
)
ROW = {"node": "n1", "gpu_uuid": "GPU-a", "holds": True}


def process(ago_s: float, username: str | None, job: str | None, size: int = 1) -> dict:
    return {
        "ts": NOW - timedelta(seconds=ago_s), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a",
        "simulated": False, "pid": size, "username": username, "job": job, "gpu_memory_bytes": size,
    }  # fmt: skip


async def named(database, row=ROW, state=None) -> tuple[object, object]:
    (found,) = await rows_with_holders(RULE, [row], state or {}, database, NOW)
    return found.get("owner"), found.get("job")


async def test_the_largest_process_says_who_it_is(database) -> None:
    database.insert("process_samples", [process(5, "root", None), process(9, "ada", "7", size=9)])
    assert await named(database) == ("ada", "7")


async def test_an_allocation_says_it_where_no_process_is_seen(database) -> None:
    of_slurm = {name: process(5, "bob", "8")[name] for name in ("ts", "node", "gpu", "gpu_uuid", "simulated", "username", "job")}  # fmt: skip
    database.insert("allocation_samples", [of_slurm | {"scheduler": "slurm"}])
    assert await named(database) == ("bob", "8")


async def test_of_a_gpu_that_was_lost_it_is_who_was_there_then(database) -> None:
    database.insert("process_samples", [process(250, "ada", "7")])
    assert await named(database) == (None, None)
    lost = ROW | {"began_at": NOW - timedelta(seconds=200)}
    assert await named(database, lost) == ("ada", "7")


async def test_what_a_row_says_stays_also_where_it_says_nobody(database) -> None:
    database.insert("process_samples", [process(5, "ada", "7")])
    assert await named(database, ROW | {"owner": None}) == (None, "7")
    assert await named(database, ROW | {"owner": "bob", "job": None}) == ("bob", None)


async def test_an_alert_keeps_who_it_was_when_it_began(database) -> None:
    database.insert("process_samples", [process(5, "ada", "7")])
    rows = await rows_with_holders(RULE, [ROW], {}, database, NOW)
    state, _ = step({}, rows, RULE, NOW)
    later = await rows_with_holders(RULE, [ROW], state, database, NOW)
    assert later == [ROW], "it is asked once"
    (alert,) = step(state, later, RULE, NOW)[0].values()
    assert (alert.owner, alert.job) == ("ada", "7")
