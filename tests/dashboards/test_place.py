"""What the pages of nodes and GPUs show beside lines: health, coverage, links, lines with several parts."""

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden_dashboards.read.health import read_health
from gpuwarden_dashboards.read.place import read_place
from gpuwarden_dashboards.read.series import Place, read_series, span_of
from gpuwarden_dashboards.read.timeline import read_coverage, read_timeline
from gpuwarden_dashboards.read.topology import read_topology
from gpuwarden_dashboards.routes import routes

BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)
GPU = Place(gpu_uuids=("GPU-1",))
NODE = Place(node="n1")
HOUR = span_of(BEGIN, BEGIN + timedelta(hours=1), 60)


def add(querier, table: str, second: float, **values) -> None:
    """A row of the first GPU of node n1."""
    row = {"ts": (BEGIN + timedelta(seconds=second)).replace(tzinfo=None), "node": "n1", **values}
    row = {"simulated": False, **row}
    if table not in ("infiniband_samples", "coverage", "events", "host_samples"):
        row = {"gpu": 0, "gpu_uuid": "GPU-1", **row}
    names, marks = ", ".join(row), ", ".join("?" for _ in row)
    querier.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def add_gpu(querier, gpu: int, **values) -> None:
    row = {"gpu_uuid": f"GPU-{gpu + 1}", "node": "n1", "gpu": gpu, "simulated": False, **values}
    names, marks = ", ".join(row), ", ".join("?" for _ in row)
    querier.db.execute(f"INSERT INTO gpus ({names}) VALUES ({marks})", list(row.values()))


async def test_health_says_what_changed_when_and_what_it_is_now(querier) -> None:
    counts = [3, 3, None, 5, 5]
    actions = ["none", "none", "none", "none", "gpu_reset"]
    for minute, (count, action) in enumerate(zip(counts, actions, strict=True)):
        add(
            querier, "gpu_health_samples", 60 * minute,
            remapped_rows_uncorrected_total=count, recovery_action=action, inforom_valid=True,
        )  # fmt: skip
    add(
        querier, "events", 200,
        gpu=0, gpu_uuid="GPU-1", kind="xid", severity="critical", message="GPU 0: Xid 63",
    )  # fmt: skip
    add(querier, "events", 201, kind="agent_started", severity="info", message="nothing of this")
    health = await read_health(querier, NODE, HOUR)
    (now,) = health.now
    assert now.values == {
        "remapped_rows_uncorrected_total": "5",
        "recovery_action": "gpu_reset",
        "inforom_valid": "yes",
    }
    assert [(c.name, c.before, c.after, c.is_grave) for c in health.changes] == [
        ("recovery_action", "none", "gpu_reset", True),
        ("xid", None, None, True),
        ("remapped_rows_uncorrected_total", "3", "5", True),
    ]


async def test_coverage_is_by_table_and_column_and_counts_a_minute_once(querier) -> None:
    for minute, taken in ((1, 60), (2, 30)):
        add(
            querier, "coverage", 60 * minute,
            gpu=0, gpu_uuid="GPU-1", probe="gpu0", table_name="gpu_samples", expected=60, taken=taken,
            missed=0, skipped=0, late=0, failed=60 - taken,
        )  # fmt: skip
        add(
            querier, "coverage", 60 * minute,
            probe="host", table_name="host_samples", expected=60, taken=60,
            missed=0, skipped=0, late=0, failed=0,
        )  # fmt: skip
    gpu, host = await read_coverage(querier, NODE, HOUR)
    assert (gpu.table, gpu.expected, gpu.taken, gpu.failed) == ("gpu_samples", 120, 90, 30)
    assert list(gpu.share[:3]) == [1.0, 0.5, None]
    assert gpu.since_ms == to_ms(BEGIN)
    assert host.share[:2] == [1.0, 1.0]
    fine = span_of(BEGIN, BEGIN + timedelta(minutes=5), 200)
    gpu, _ = await read_coverage(querier, NODE, fine)
    assert (gpu.taken, gpu.share[29], gpu.share[31], gpu.share[61]) == (90, 1.0, 0.5, None)


async def test_topology_has_links_with_rates_and_errors_ways_and_ports(querier) -> None:
    peers = "{0000:2a:00.0=NV18, 0000:ff:00.0=SYS}"
    add_gpu(querier, 0, pci_bus_id="0000:1a:00.0", peers=peers, numa_node=0)
    add_gpu(querier, 1, pci_bus_id="0000:2a:00.0", numa_node=1, cpu_affinity="32-63")
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, mig_instance, parent_gpu_uuid, simulated)"
        " VALUES ('MIG-1', 'n1', 1, '1/0', 'GPU-2', false)"
    )
    for second in range(0, 600, 10):
        for link in (0, 1):
            add(
                querier, "link_samples", second,
                link_type="nvlink", link=link, remote_type="switch", remote_pci_bus_id="0000:c1:00.0",
                active=link == 0, tx_bytes_total=1000 * second, rx_bytes_total=0,
                crc_flit_errors_total=7 + (second > 300) * (link == 1), replay_errors_total=1,
            )  # fmt: skip
        add(
            querier, "infiniband_samples", second,
            device="mlx5_0", port=1, state="active", numa_node=1, tx_bytes_total=5 * second, rx_bytes_total=None,
        )  # fmt: skip
    found = await read_topology(querier, "n1", BEGIN + timedelta(seconds=599))
    assert [gpu["gpu"] for gpu in found.gpus] == [0, 1]
    assert [mig["gpu_uuid"] for mig in found.gpus[1]["mig"]] == ["MIG-1"]
    assert found.ways == [(0, 1, "NV18")]
    first, second = found.links
    assert (first["active"], first["tx_bytes_per_second"], first["rx_bytes_per_second"]) == (
        True,
        1000.0,
        0.0,
    )
    assert (first["errors"], second["errors"]) == ({}, {"crc_flit_errors_total": 1})
    (port,) = found.ports
    assert (port["tx_bytes_per_second"], port["rx_bytes_per_second"]) == (5.0, None)
    assert (port["numa_node"], found.gpus[1]["cpu_affinity"]) == (1, "32-63")


@pytest.mark.parametrize("length", [timedelta(minutes=10), timedelta(days=2)])
async def test_links_ports_and_processes_are_lines_of_their_own(querier, length) -> None:
    for second in range(0, 60, 10):
        for link in (0, 1):
            add(
                querier, "link_samples", second,
                link_type="nvlink", link=link, active=link == 0, tx_bytes_total=second * (link + 1),
            )  # fmt: skip
        for pid, job in ((5, "7"), (6, "8")):
            add(
                querier, "process_samples", second,
                pid=pid, process_name="python", job=job, loader_workers=pid,
            )  # fmt: skip
    querier.db.execute(
        "INSERT INTO process_1m (ts, node, gpu, gpu_uuid, pid, process_name, job, simulated, samples,"
        " loader_workers_avg) SELECT min(ts), node, gpu, gpu_uuid, pid, process_name, job, false, 6,"
        " avg(loader_workers) FROM process_samples GROUP BY ALL"
    )
    span = span_of(BEGIN, BEGIN + length, 60)
    lines = await read_series(
        querier,
        Place(gpu_uuids=("GPU-1",), job="7"),
        ["link.tx_bytes_total", "link.active", "process.loader_workers"],
        span,
    )
    assert [(line.metric, line.part, line.mean[0]) for line in lines[2:]] == [
        ("link.active", "nvlink 0", 1.0),
        ("link.active", "nvlink 1", 0.0),
        ("process.loader_workers", "python 5", 5.0),
    ]
    assert [(line.part, max(filter(None, line.mean))) for line in lines[:2]] == [
        ("nvlink 0", 1.0),
        ("nvlink 1", 2.0),
    ]


async def test_what_happened_to_a_node_happened_to_its_gpus(querier) -> None:
    add_gpu(querier, 0)
    add(querier, "events", 5, kind="driver_timeout", severity="warning", message="slow")
    add(querier, "events", 6, gpu=1, gpu_uuid="GPU-2", kind="xid", severity="critical", message="x")
    found = await read_timeline(querier, GPU, HOUR)
    assert [(mark.name, mark.gpu) for mark in found.marks] == [("driver_timeout", None)]


async def test_data_of_pages_are_served_and_wrong_questions_refused(querier) -> None:
    add_gpu(querier, 0, mig_instance=None)
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    span = f"begin={HOUR.begin_ms}&end={HOUR.begin_ms + 3_600_000}"
    async with TestClient(TestServer(app)) as client:
        for path, key in (
            (f"/v1/health?gpu_uuid=GPU-1&{span}", "changes"),
            (f"/v1/coverage?node=n1&{span}&columns=10", "tables"),
            (f"/v1/topology?node=n1&end={HOUR.begin_ms}", "gpus"),
            (f"/v1/timeline?gpu_uuid=GPU-1,GPU-2&{span}", "states"),
            (f"/v1/series/model?gpu_uuid=GPU-1&metrics=power_watts&{span}", "lines"),
        ):
            answer = await client.get(path)
            assert answer.status == 200, await answer.text()
            assert key in await answer.json()
        for path, reason in (
            ("/v1/topology", "node is missing"),
            ("/v1/health?begin=1&end=2", "either node or gpu_uuid"),
            ("/v1/series/model?gpu_uuid=a,b&metrics=power_watts", "give one gpu_uuid"),
            ("/v1/series/model?node=n1&metrics=power_watts", "give one gpu_uuid"),
            ("/money?begin=yesterday", "begin must be a time"),
            ("/money?begin=2026-03-02&end=2026-03-01", "the end must be after the begin"),
            ("/money?sort=colour", "sort must be one of name, usd"),
        ):
            answer = await client.get(path)
            assert answer.status == 400
            assert reason in await answer.text()
        for path in (
            "/money?begin=2026-03-01T12:00&end=2026-03-02T12:00Z",
            "/money?begin=1&by=job",
        ):
            assert (await client.get(path)).status == 200
        assert (await client.get("/jobs/none")).status == 404


async def test_processes_have_their_state_threads_workers_and_what_their_tree_reads(
    querier,
) -> None:
    now = datetime.now(UTC)
    add_gpu(querier, 0)
    for age, read, written in ((20, 1_000, 900), (10, 2_000, 300), (0, 21_000, 400)):
        querier.db.execute(
            "INSERT INTO process_samples (ts, node, gpu, gpu_uuid, simulated, pid, process_name, state, threads,"
            " loader_workers, read_bytes_total, write_bytes_total)"
            " VALUES (?, 'n1', 0, 'GPU-1', false, 7, 'python', 'D', 31, 8, ?, ?)",
            [(now - timedelta(seconds=age)).replace(tzinfo=None), read, written],
        )
    querier.db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES ('n1', 'a', 'b', false, ?)",
        [now.replace(tzinfo=None)],
    )
    place = await read_place(querier, NODE, now)
    assert place is not None
    (process,) = place.processes
    names = ("state", "threads", "loader_workers", "read_bytes", "written_bytes")
    # The counter of writes fell: its rate is not known.
    assert [process[name] for name in names] == ["D", 31, 8, 1_000.0, None]
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    async with TestClient(TestServer(app)) as client:
        html = await (await client.get("/nodes/n1")).text()
    assert '<td>blocked on I/O</td><td class="number">31</td><td class="number">8</td>' in html
