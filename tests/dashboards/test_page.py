"""The page: what a person reads, and what an attacker cannot do."""

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.answers import SECURITY_POLICY
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.fleet import FleetPage
from gpuwarden_dashboards.pages.place import PlacePages
from gpuwarden_dashboards.read.fleet import read_fleet
from gpuwarden_dashboards.read.place import read_place
from gpuwarden_dashboards.read.series import Place
from gpuwarden_dashboards.templates import Templates

NOW = datetime.now(UTC)
TEMPLATES = Templates(load_assets())
render = FleetPage(TEMPLATES, None, SystemClock()).render


class Texts(HTMLParser):
    """Collects text and tag names, and checks that tags close in order."""

    VOID = frozenset({"meta", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def parsed(html: str) -> Texts:
    page = Texts()
    page.feed(html)
    assert page.open == []
    return page


def add_node(db, node="n1", *, seen=NOW) -> None:
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES (?,?,?,?,?)",
        [node, "a", "b", True, seen.replace(tzinfo=None)],
    )


def add_gpu(db, gpu: int, util, *, node="n1", usd=2.95) -> None:
    uuid = f"GPU-{node}-{gpu}"
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, usd_per_hour, simulated)"
        " VALUES (?, ?, ?, 'NVIDIA H100', ?, true)",
        [uuid, node, gpu, usd],
    )
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, power_watts)"
        " VALUES (now()::TIMESTAMP, ?, ?, ?, true, ?, 400)",
        [node, gpu, uuid, util],
    )


def add_alert(db, *, summary="GPU 0 idle", severity="warning", usd=2.95, node="n1") -> None:
    began = (datetime.now(UTC) - timedelta(hours=2)).replace(tzinfo=None)
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels,"
        " summary, remedy, usd_per_hour, began_at, active_at, fired_at, seen_at, simulated)"
        " VALUES (?, 'gpu_idle_held', ?, 'waste', 'firing', ?, 0, 'GPU-n1-0', '{}', ?, 'Stop job 7.', ?,"
        " ?, ?, ?, ?, true)",
        [summary, severity, node, summary, usd, began, began, began, began],
    )


async def test_an_empty_fleet_says_so(querier) -> None:
    page = parsed(render(await read_fleet(querier, NOW)))
    assert "Nothing is firing." in page.text
    assert "No agent has reported yet." in page.text


async def test_state_alerts_and_money_are_on_the_page(querier) -> None:
    add_node(querier.db)
    for gpu, util in enumerate([98.0, 0.0, None]):
        add_gpu(querier.db, gpu, util)
    add_alert(querier.db)
    html = render(await read_fleet(querier, NOW))
    page = parsed(html)
    assert "3GPUs on 1 nodes" in page.text
    assert "1busy" in page.text
    assert "1idle now" in page.text
    assert "1utilization unknown" in page.text
    assert "$2.95/hon idle GPUs, of $8.85/h" in page.text
    assert "1 firing, in no incident yet" in page.text
    assert "$5.90 so far, $2.95/h" in page.text
    assert "Stop job 7." in page.text
    tiles = [attrs for tag, attrs in page.tags if "gpu" in (attrs.get("class") or "").split()]
    assert [tile["class"] for tile in tiles] == ["gpu u10 trouble", "gpu u0", "gpu"]
    assert tiles[1]["href"] == "/nodes/n1?gpu=1"
    assert "gpu_idle_held" in tiles[0]["title"]


async def test_an_alert_of_a_silent_node_is_marked_stale(querier) -> None:
    add_alert(querier.db)
    assert "stale" not in parsed(render(await read_fleet(querier, NOW))).text
    querier.db.execute("UPDATE alerts SET stale_since = ?", [NOW - timedelta(minutes=7)])
    page = parsed(render(await read_fleet(querier, NOW)))
    assert "stale: the node stopped sending 7 min ago" in page.text


def add_incident(
    db, name: str, *, severity="warning", consequence="waste", usd=2.95, muted=None
) -> None:
    began = (datetime.now(UTC) - timedelta(hours=2)).replace(tzinfo=None)
    db.execute(
        "INSERT INTO incidents (id, state, root, rule, severity, consequence, summary, remedy, place, labels,"
        " nodes, roots, alerts, firing, usd_per_hour, muted, simulated, began_at, opened_at)"
        " VALUES (?, 'open', ?, 'r', ?, ?, ?, 'Do it.', 'n1', '{}', 1, 1, 2, 2, ?, ?, true, ?, ?)",
        [name, f"{name} root", severity, consequence, f"{name} is wrong", usd, muted, began, began],
    )


async def test_incidents_come_by_consequence_with_their_alerts_below_and_others_after(
    querier,
) -> None:
    for summary in ("GPU 0 idle", "GPU 1 idle", "GPU 2 idle"):
        add_alert(querier.db, summary=summary)
    for fingerprint, cause in (("GPU 1 idle", None), ("GPU 0 idle", "GPU 1 idle")):
        querier.db.execute(
            "INSERT INTO incident_alerts SELECT 'idle', fingerprint, active_at, rule, labels, ?, active_at, NULL"
            " FROM alerts WHERE fingerprint = ?",
            [cause, fingerprint],
        )
    muted = "acknowledged until 18:00 UTC by <alice>"
    add_incident(querier.db, "idle", usd=90)
    add_incident(querier.db, "sick", consequence="failing_hardware", usd=None, muted=muted)
    add_incident(querier.db, "slow", severity="critical", consequence="slow_work")
    page = parsed(render(await read_fleet(querier, NOW)))
    assert "3 open incidents" in page.text
    assert "1 firing, in no incident yet" in page.text
    places = [page.text.index(said) for said in (
        "slow is wrong", "sick is wrong", "idle is wrong", "root", "GPU 1 idle", "follows", "GPU 0 idle", "GPU 2 idle",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "gpuwarden incidents ack idle" in page.text
    (tag,) = [attrs for name, attrs in page.tags if attrs.get("title") == muted]
    assert tag["class"] == "tag"
    assert "1 follow" in page.text


async def test_more_incidents_and_alerts_than_fit_are_counted(querier) -> None:
    for number in range(57):
        add_alert(querier.db, summary=f"GPU {number} idle")
        add_incident(querier.db, f"i{number}")
    page = parsed(render(await read_fleet(querier, NOW)))
    assert "57 open incidents" in page.text
    assert "57 firing, in no incident yet" in page.text
    assert "and 7 more: gpuwarden incidents list" in page.text
    assert "and 7 more: gpuwarden alerts list" in page.text


async def test_a_node_that_fell_silent_stands_out_with_its_gpus(querier) -> None:
    add_node(querier.db, seen=NOW - timedelta(minutes=7))
    add_gpu(querier.db, 0, 98.0)
    querier.db.execute("UPDATE gpu_samples SET ts = ts - INTERVAL 7 MINUTE")
    page = parsed(render(await read_fleet(querier, NOW)))
    assert "not reporting, last 7 min ago" in page.text
    assert "0 of 1GPUs report" in page.text
    (tile,) = [attrs for tag, attrs in page.tags if "gpu" in (attrs.get("class") or "").split()]
    assert tile["class"] == "gpu silent"
    assert "not reporting" in tile["title"]


EVIL = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>']


@pytest.mark.parametrize("evil", EVIL)
async def test_names_from_outside_are_text_and_nothing_else(querier, evil) -> None:
    add_node(querier.db, evil)
    add_gpu(querier.db, 0, 50.0, node=evil)
    add_alert(querier.db, summary=evil, node=evil)
    querier.db.execute(
        "INSERT INTO process_samples (ts, node, gpu, gpu_uuid, simulated, pid, process_name, username)"
        " VALUES (now()::TIMESTAMP, $1, 0, $2, true, 1, $1, $1)",
        [evil, f"GPU-{evil}-0"],
    )
    of_node = await read_place(querier, Place(node=evil), NOW)
    of_gpu = await read_place(querier, Place(gpu_uuids=(f"GPU-{evil}-0",)), NOW)
    places = PlacePages(TEMPLATES, querier, SystemClock())
    assert of_node is not None
    assert of_gpu is not None
    for html, least in (
        (render(await read_fleet(querier, NOW)), 2),
        (places.render(of_node), 4),
        (places.render(of_gpu), 4),
    ):
        page = parsed(html)
        assert page.text.count(evil) >= least
        scripts = [attrs for tag, attrs in page.tags if tag == "script"]
        assert all("src" in attrs or attrs["type"] == "application/json" for attrs in scripts)
        assert not [attrs for tag, attrs in page.tags if tag == "img" or "onerror" in attrs]


def test_the_policy_allows_only_files_of_this_server() -> None:
    assert "unsafe" not in SECURITY_POLICY
    assert "default-src 'none'" in SECURITY_POLICY
