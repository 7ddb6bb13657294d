"""Messages survive being stored."""

from dataclasses import replace

import pytest
from tests.rules.notify.alerts import START, make_alert

from gpuwarden.alert import Severity
from gpuwarden_rules.notify.message import (
    Digest,
    MessageKind,
    Notification,
    Waster,
    from_json,
    message_id,
    to_json,
)

MESSAGE = Notification(
    id="a", receiver="r", kind=MessageKind.ALERTS, group="g", made_at=START, labels={"node": "ü"},
    firing=(make_alert(severity=Severity.INFO), make_alert(gpu=1)), resolved=(make_alert(gpu=2),),
    digest=Digest(
        since=START, until=START, wasted_hours=1.5, gpu_hours=2, usd=None,
        wasters=(Waster(name="n", usd=0.1, hours=3),),
    ),
)  # fmt: skip


def test_a_message_comes_back_as_it_was() -> None:
    assert from_json(to_json(MESSAGE)) == MESSAGE


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", to_json(MESSAGE)[:-9], b"\xff"])
def test_junk_is_a_value_error(body) -> None:
    with pytest.raises(ValueError):  # every kind of it
        from_json(body)


def test_the_most_urgent_alert_speaks_for_the_message() -> None:
    assert MESSAGE.severity is Severity.CRITICAL
    assert replace(MESSAGE, firing=()).severity is Severity.CRITICAL
    assert replace(MESSAGE, firing=(), resolved=()).severity is None


def test_ids_differ_where_a_part_does() -> None:
    assert message_id("a", "b") != message_id("ab", "")
    assert len(message_id("a")) == 32
