"""`gpuwarden annotate` from the command line."""

from typing import Any

from gpuwarden_cli.main import main


def test_a_text_is_sent_with_what_it_is_about(answering: Any, capsys: Any) -> None:
    asked = answering(201, {"id": "5427dc88", "text": "deployed 2.3"})
    command = ["annotate", "deployed 2.3", "--node", "n1", "--gpu", "0", "--tag", "a", "--tag", "b"]
    assert main(command) == 0
    assert asked == [
        {"path": "/v1/annotations", "text": "deployed 2.3", "node": "n1", "gpu": 0, "tags": ["a", "b"]}
    ]  # fmt: skip
    assert capsys.readouterr().out == "annotation 5427dc88: deployed 2.3\n"
