"""Messages survive being stored."""

from dataclasses import replace

import pytest
from tests.rules.notify.alerts import START, make_alert, message_of

from gpuwarden.alert import Severity
from gpuwarden_rules.notify.message import (
    Digest,
    MessageReason,
    Waster,
    from_json,
    to_json,
)

MESSAGE = replace(
    message_of(make_alert(severity=Severity.INFO, node="ü"), make_alert(gpu=1, node="ü")),
    resolved=(make_alert(gpu=2),),
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


def test_only_what_says_all_that_an_older_message_said_replaces_it() -> None:
    repeat = replace(MESSAGE, reason=MessageReason.REPEATED, resolved=())
    assert repeat.is_replaceable
    assert not replace(repeat, resolved=MESSAGE.resolved).is_replaceable
    assert not replace(repeat, reason=MessageReason.RESOLVED).is_replaceable
