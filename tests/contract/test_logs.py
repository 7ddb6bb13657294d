"""Lines of the log have their documented form."""

import json
import logging
import os
import tempfile

from gpuwarden.access import Scope, Token
from gpuwarden.logs import JournalFormatter, JsonFormatter, TextFormatter, is_journal, setup


def record(**extra) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {
            "name": "gpuwarden_agent.ship.shipper",
            "levelno": 30,
            "levelname": "WARNING",
            "msg": "late",
        }
    )
    made.__dict__.update(extra)
    return made


def test_text_quotes_what_needs_it_and_json_has_every_field() -> None:
    one = record(node="n 1", batches=3)
    assert TextFormatter(with_time=False).format(one) == 'warning agent: late node="n 1" batches=3'
    entry = json.loads(JsonFormatter().format(one))
    assert (entry["message"], entry["batches"], entry["level"]) == ("late", 3, "warning")


def test_journald_gets_the_priority_of_each_line() -> None:
    formatter = JournalFormatter(TextFormatter(with_time=False))
    assert formatter.format(record(node="n1")) == "<4>warning agent: late node=n1"
    try:
        raise ValueError("x")
    except ValueError as error:
        trace = record(levelno=40, exc_info=(type(error), error, error.__traceback__))
    assert {line[:3] for line in formatter.format(trace).splitlines()} == {"<3>"}


def test_a_stream_is_the_journals_only_where_systemd_named_this_very_one() -> None:
    with tempfile.TemporaryFile() as file:
        found = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_journal(file.fileno(), named)
        assert not is_journal(file.fileno(), {})
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": "8:1"})
    assert not is_journal(-1, named)


def test_setup_quietens_noisy_libraries(capsys) -> None:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        setup("info", "json")
        logging.getLogger("aiohttp.access").info("GET /")
        logging.getLogger("gpuwarden_agent").info("ready")
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["ready"]


def test_secrets_of_addresses_are_masked_in_values_messages_and_traces() -> None:
    token = Token.new(Scope.READ).text
    secret = "q-_Zr3" * 7
    try:
        raise ValueError(f"no answer at https://c/answer/{secret}?x=1")
    except ValueError as error:
        one = record(
            msg=f"asked with {token}",
            path=f"/answer/{secret}",
            url=f"/login/callback?code={secret}&state={secret}&x=1#",
            next=f"/login?next=%2Fanswer%2F{secret}",
            other=f"/x?access_token={secret}",
            state="open",
            exc_info=(type(error), error, error.__traceback__),
        )
    for formatter in (TextFormatter(with_time=False), JsonFormatter()):
        line = formatter.format(one)
        assert secret not in line and token not in line
        # What they were is still to be seen.
        for rest in (
            token[:21],
            "/answer/***",
            "code=***&state=***&x=1",
            "access_token=***",
            "open",
            "?x=1",
        ):
            assert rest in line, rest
