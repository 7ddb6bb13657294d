"""The queries behind the page."""

from datetime import UTC, datetime

from gpuwarden_dashboards.read.fleet import NODES_MAX, read_fleet

NOW = datetime.now(UTC)


def add_nodes(db, count: int) -> None:
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated) "
        "SELECT format('n{:05d}', i), 'a', 'b', false FROM range(?) t(i)",
        [count],
    )


async def test_a_large_fleet_is_cut_with_its_size_known(querier) -> None:
    add_nodes(querier.db, NODES_MAX + 50)
    fleet = await read_fleet(querier, NOW)
    assert len(fleet.nodes) == NODES_MAX
    assert fleet.totals["nodes"] == NODES_MAX + 50
    assert fleet.nodes[0]["node"] == "n00000"


async def test_only_the_last_minute_counts_as_now(querier) -> None:
    add_nodes(querier.db, 1)
    querier.db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent) VALUES"
        " (now()::TIMESTAMP - INTERVAL 90 SECOND, 'n00000', 0, 'GPU-old', false, 10),"
        " (now()::TIMESTAMP - INTERVAL 3 SECOND, 'n00000', 1, 'GPU-new', false, 20),"
        " (now()::TIMESTAMP - INTERVAL 2 SECOND, 'n00000', 1, 'GPU-new', false, 30)"
    )
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, simulated) VALUES ('GPU-old', 'n00000', 0, false),"
        " ('GPU-new', 'n00000', 1, false)"
    )
    fleet = await read_fleet(querier, NOW)
    assert [
        (gpu["gpu_uuid"], gpu["util_percent"], gpu["silent"]) for gpu in fleet.gpus["n00000"]
    ] == [("GPU-old", None, True), ("GPU-new", 30.0, False)]
    assert fleet.totals["gpus"] == 1
    assert fleet.firing == 0
