"""`gpuwarden collector` from the command line."""

from gpuwarden_cli.main import main


def test_config_shows_what_a_collector_would_run_with(capsys) -> None:
    assert main(["collector", "config", "--port", "9000", "--format", "csv"]) == 0
    out = capsys.readouterr().out
    assert "port,9000,--port," in out
    assert "data_dir," in out


def test_a_port_that_is_no_number_is_one_line(capsys) -> None:
    assert main(["collector", "config", "--port", "http"]) == 78
    assert capsys.readouterr().err == "gpuwarden: --port: port = http must be a whole number\n"
