"""The check of a repaired node by the command."""

from gpuwarden_cli.main import main


def test_a_time_that_is_none_says_so(capsys) -> None:
    assert main(["accept", "n1", "--since", "ever"]) == 2
    assert capsys.readouterr().err == "gpuwarden: --since ever is not a duration; write 6h or 7d\n"
