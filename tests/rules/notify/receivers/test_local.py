"""Files and standard output."""

import json
from dataclasses import replace
from datetime import UTC

from tests.rules.notify.alerts import make_alert, message_of

from gpuwarden_rules.notify.receivers.local import LineFile, Output, append
from gpuwarden_rules.notify.receivers.receiver import Delivered, DeliveryDelayed
from gpuwarden_rules.notify.sentences import Style

MESSAGE = replace(message_of(make_alert()), id="abc")


async def test_a_file_gets_a_line_a_message_and_may_be_moved_away(tmp_path) -> None:
    receiver = LineFile(tmp_path / "alerts.jsonl", Style(UTC))
    await receiver.send(MESSAGE)
    (tmp_path / "alerts.jsonl").rename(tmp_path / "alerts.jsonl.1")
    await receiver.send(MESSAGE)
    assert isinstance(await receiver.send(MESSAGE), Delivered)
    assert len((tmp_path / "alerts.jsonl.1").read_text().splitlines()) == 1
    lines = (tmp_path / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["abc", "abc"]


def test_a_line_that_a_crash_cut_off_is_ended_first(tmp_path) -> None:
    path = tmp_path / "alerts.jsonl"
    path.write_text('{"id": "a"}\n{"id":')
    append(path, '{"id": "b"}')
    assert path.read_text() == '{"id": "a"}\n{"id":\n{"id": "b"}\n'


async def test_a_folder_that_is_not_there_is_later(tmp_path) -> None:
    outcome = await LineFile(tmp_path / "no" / "alerts.jsonl", Style(UTC)).send(MESSAGE)
    assert outcome == DeliveryDelayed(f"{tmp_path}/no/alerts.jsonl: No such file or directory")


async def test_standard_output_is_text_one_line_or_json(capsys) -> None:
    for form in ("text", "short", "json"):
        assert isinstance(await Output(form, Style(UTC)).send(MESSAGE), Delivered)
    text, short, line = capsys.readouterr().out.split("CRITICAL", 2)[1:] + [""]
    assert text.startswith(" dgx-07 GPU 0: gpu_hot\n")
    assert json.loads(short.splitlines()[1])["id"] == "abc"
    assert not line
