"""The pages: nothing from outside is more than text, and the policy."""

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.place import PlacePages
from gpuwarden_dashboards.read.place import read_place
from gpuwarden_dashboards.read.series import Place
from gpuwarden_dashboards.templates import Templates

NOW = datetime.now(UTC)
pytestmark = pytest.mark.usefixtures("fresh_now")
TEMPLATES = Templates(load_assets())


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


def add_node(db, node) -> None:
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES (?,?,?,?,?)",
        [node, "a", "b", True, NOW.replace(tzinfo=None)],
    )


def add_gpu(db, node) -> None:
    uuid = f"GPU-{node}-0"
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated) VALUES (?, ?, 0, 'NVIDIA H100', true)",
        [uuid, node],
    )
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent)"
        " VALUES (now()::TIMESTAMP, ?, 0, ?, true, 50)",
        [node, uuid],
    )


def add_alert(db, *, summary, node) -> None:
    began = (datetime.now(UTC) - timedelta(hours=2)).replace(tzinfo=None)
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels,"
        " summary, remedy, began_at, active_at, fired_at, seen_at, simulated)"
        " VALUES ($1, 'gpu_idle_held', 'warning', 'waste', 'firing', $2, 0, 'GPU-' || $2 || '-0', '{}', $1,"
        " 'Stop job 7.', $3, $3, $3, $3, true)",
        [summary, node, began],
    )


EVIL = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>']


@pytest.mark.parametrize("evil", EVIL)
async def test_names_from_outside_are_text_and_nothing_else(querier, evil) -> None:
    add_node(querier.db, evil)
    add_gpu(querier.db, evil)
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
    for place in (of_node, of_gpu):
        page = parsed(places.render(place))
        assert page.text.count(evil) >= 4
        scripts = [attrs for tag, attrs in page.tags if tag == "script"]
        assert all("src" in attrs or attrs["type"] == "application/json" for attrs in scripts)
        assert not [attrs for tag, attrs in page.tags if tag == "img" or "onerror" in attrs]
