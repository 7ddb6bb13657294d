"""What a line of the log looks like."""

import json
import logging

from gpuwarden.logs import JsonFormatter, TextFormatter, setup


def record(**extra) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "gpuwarden_agent.shipper", "levelno": 30, "levelname": "WARNING", "msg": "late"}
    )
    made.__dict__.update(extra)
    return made


def test_text_names_the_part_and_quotes_what_needs_it() -> None:
    line = TextFormatter(with_time=False).format(record(node="n 1", batches=3))
    assert line == 'warning agent: late node="n 1" batches=3'


def test_json_is_one_object_with_every_field() -> None:
    entry = json.loads(JsonFormatter().format(record(batches=3)))
    assert entry["message"] == "late"
    assert entry["batches"] == 3
    assert entry["level"] == "warning"


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
