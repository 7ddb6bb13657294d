"""Alerts in a real Alertmanager (Debian's prometheus-alertmanager)."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.rules.notify.alerts import make_alert, message_of

from gpuwarden.alert import AlertState, Severity
from gpuwarden.clock import SystemClock
from gpuwarden_rules.notify.message import MessageKind, Notification
from gpuwarden_rules.notify.receivers.alertmanager import Alertmanager, alerts_of
from gpuwarden_rules.notify.receivers.receiver import Delivered, DeliveryDelayed
from gpuwarden_rules.notify.sentences import Style

NAME = "prometheus-alertmanager"
STYLE = Style(UTC, "https://gpuwarden.example.com")
DEADLINE_S = 30


@contextlib.contextmanager
def running_alertmanager(folder: Path) -> Iterator[str]:
    """The address of an Alertmanager that tells nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "alertmanager.yml"
    config.write_text(
        "{route: {receiver: none, group_by: [incident]}, receivers: [{name: none}]}\n"
    )
    flags = {
        "config.file": config,
        "storage.path": folder / "data",
        "web.listen-address": address,
        "cluster.listen-address": "",
    }
    with (folder / "log").open("wb") as log:
        command = [NAME, *(f"--{name}={value}" for name, value in flags.items())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(20)


async def active(session: aiohttp.ClientSession, url: str) -> dict[str, dict[str, object]]:
    """What it believes to fire, by GPU."""
    async with session.get(f"{url}/api/v2/alerts") as answer:
        return {alert["labels"].get("gpu", ""): alert for alert in await answer.json()}


@pytest.mark.skipif(shutil.which(NAME) is None, reason=f"{NAME} is not on the PATH")
async def test_a_real_alertmanager_hears_of_begin_and_end(tmp_path) -> None:
    now = SystemClock().now()
    alerts = tuple(make_alert(gpu=gpu, at=now, simulated=gpu == 1) for gpu in range(2))
    message = message_of(*alerts, at=now)
    assert message.incident is not None
    with running_alertmanager(tmp_path) as url:
        receiver = Alertmanager(url + "/", STYLE)
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(DEADLINE_S):
                while isinstance(await receiver.send(message), DeliveryDelayed):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            # Again is harmless.
            assert isinstance(await receiver.send(message), Delivered)
            found = await active(session, url)
            assert found.keys() == {"0", "1"}
            assert found["0"]["labels"] == {
                "alertname": "gpu_hot", "severity": "critical", "node": "dgx-07", "gpu": "0",
                "gpu_uuid": "GPU-0", "incident": message.incident.id,
            }  # fmt: skip
            assert found["1"]["labels"]["simulated"] == "true"
            assert "92 °C" in found["0"]["annotations"]["summary"]
            over = replace(alerts[0], state=AlertState.RESOLVED, resolved_at=now)
            end = replace(message, id="b", firing=alerts[1:], resolved=(over,))
            assert isinstance(await receiver.send(end), Delivered)
            assert (await active(session, url)).keys() == {"1"}
            # A digest and a test are alerts that end soon.
            test = replace(message, kind=MessageKind.TEST, firing=())
            assert isinstance(await receiver.send(test), Delivered)
            assert (await active(session, url)).keys() == {"", "1"}
        await receiver.close()


@pytest.mark.skipif(shutil.which(NAME) is None, reason=f"{NAME} is not on the PATH")
async def test_grouped_by_incident_it_has_one_group_of_an_incident(tmp_path) -> None:
    now = SystemClock().now()
    alerts = [make_alert(gpu=gpu, at=now) for gpu in range(4)]
    first, second = message_of(*alerts[:3], at=now), message_of(alerts[3], at=now)
    assert first.incident is not None and second.incident is not None
    second = replace(second, incident=replace(second.incident, id="another"))
    with running_alertmanager(tmp_path) as url:
        receiver = Alertmanager(url, STYLE)
        groups: list[Any] = []
        async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE_S):
            for message in (first, second):
                while isinstance(await receiver.send(message), DeliveryDelayed):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            while sum(len(group["alerts"]) for group in groups) < 4:
                await asyncio.sleep(0.1)
                async with session.get(f"{url}/api/v2/alerts/groups") as answer:
                    groups = await answer.json()
        await receiver.close()
    sizes = {group["labels"]["incident"]: len(group["alerts"]) for group in groups}
    assert sizes == {first.incident.id: 3, "another": 1}


async def test_an_alertmanager_that_is_away_is_later(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        receiver = Alertmanager(f"http://127.0.0.1:{free.getsockname()[1]}", STYLE)
        message = Notification(
            id="a", receiver="am", kind=MessageKind.TEST, group="g", made_at=SystemClock().now()
        )
        assert isinstance(await receiver.send(message), DeliveryDelayed)
        await receiver.close()


def test_what_fires_holds_for_three_repeats_and_what_is_unknown_is_left_out(start) -> None:
    alert = make_alert(severity=Severity.INFO, usd_per_hour=None, owner="ann")
    (posted,) = alerts_of(message_of(alert), STYLE)
    until = (start + timedelta(minutes=15)).isoformat(timespec="milliseconds")
    assert posted["endsAt"] == until.replace("+00:00", "Z")
    assert posted["annotations"].keys() == {"summary", "remedy", "owner"}
    assert posted["generatorURL"] == STYLE.link
