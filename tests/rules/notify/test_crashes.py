"""kill -9 of a notifier with a real HTTP receiver: nothing is lost, nothing acknowledged comes again."""

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web
from tests.rules.notify.hook_server import Hook, hook_server

ALERTS = 60
KILLS = 4
PROGRAM = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from gpuwarden.clock import SystemClock
from gpuwarden_rules.notify.notifier import Notifier
from gpuwarden_rules.notify.outbox import Outbox
from gpuwarden_rules.notify.receivers.factory import receiver_of
from gpuwarden_rules.notify.settings import parse
from tests.rules.notify.alerts import Incidents, make_alert

folder, url, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
clock = SystemClock()
text = "{receivers: [{name: hook, webhook: '%s', secret: s}]}"
notify = parse(text % url, "notify.yaml", {})
# A few more each time that the notifier looks: some fire while others are being sent.
alerts = [make_alert(node=f"n{number}") for number in range(count)]
seen = 0

incidents = Incidents()

def look():
    global seen
    seen = min(count, seen + 5)
    return incidents.view(alerts[:seen], clock.now())

async def main():
    receivers = {r.name: receiver_of(r, notify.style, clock) for r in notify.receivers}
    notifier = Notifier(notify, receivers, Outbox(folder / "o", clock), look, None, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(notifier.run(asyncio.Event()))
        while True:
            notifier.wake()
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


async def start(folder: Path, hook: Hook) -> asyncio.subprocess.Process:
    root = Path(__file__).parents[3]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(folder), hook.url, str(ALERTS), cwd=root
    )


def nodes_of(hook: Hook) -> set[str]:
    """Nodes whose alert was acknowledged."""
    bodies = [json.loads(got.body) for got in hook.got if got.status == 204]
    return {alert["labels"]["node"] for body in bodies for alert in body["firing"]}


@pytest.mark.slow
async def test_a_kill_loses_nothing_and_sends_nothing_again_that_was_noted(tmp_path) -> None:
    draw = random.Random(7)

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.005)
        return web.Response(status=503 if draw.random() < 0.04 else 204)

    async with hook_server() as hook:
        hook.answer = answer
        for kill in range(KILLS):
            process = await start(tmp_path, hook)
            wanted = len(hook.got) + draw.randint(1, ALERTS // (2 * KILLS))
            async with asyncio.timeout(60):
                while len(hook.got) < wanted:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.002)
            process.kill()
            await process.wait()
            assert len(nodes_of(hook)) < ALERTS, f"all was sent before kill {kill}"
        process = await start(tmp_path, hook)
        async with asyncio.timeout(60):
            while len(nodes_of(hook)) < ALERTS:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)
        process.kill()
        await process.wait()
    assert nodes_of(hook) == {f"n{number}" for number in range(ALERTS)}
    identities: dict[str, set[str]] = {}
    for got in hook.got:
        body = json.loads(got.body)
        assert got.headers["webhook-id"] == body["id"]
        for alert in body["firing"]:
            identities.setdefault(alert["labels"]["node"], set()).add(body["id"])
    assert {len(ids) for ids in identities.values()} == {1}
    acknowledged = Counter(got.headers["webhook-id"] for got in hook.got if got.status == 204)
    again = sum(count - 1 for count in acknowledged.values())
    assert again <= KILLS, "only what was being answered at a kill may come again"
