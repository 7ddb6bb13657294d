"""The collector's settings load as an operator writes them, and wrong ones are named."""

from pathlib import Path

import pytest

from gpuwarden.settings import SettingsError, load
from gpuwarden_collector.settings import CollectorSettings


def test_defaults_are_the_documented_ones() -> None:
    settings = load(CollectorSettings, "collector", env={}).settings
    assert (settings.host, settings.port) == ("127.0.0.1", 8750)
    assert settings.data_dir == Path("/var/lib/gpuwarden")
    assert settings == CollectorSettings()


def test_prices_come_from_file_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    path.write_text('port = 9000\n[prices]\nH100 = 2.1\n"NVIDIA Foo 1" = 3\n')
    loaded = load(CollectorSettings, "collector", path=path, env={})
    assert loaded.settings.prices == {"H100": 2.1, "NVIDIA Foo 1": 3.0}
    assert loaded.sources["port"] == f"{path}:1"
    env = {"GPUWARDEN_COLLECTOR_PRICES": "H100=1.5"}
    assert load(CollectorSettings, "collector", path=path, env=env).settings.prices == {"H100": 1.5}


@pytest.mark.parametrize(
    ("name", "value"), [("port", 70_000), ("query_processes", 0), ("query_timeout_s", 0.05)]
)
def test_values_out_of_range_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match="must be at"):
        load(CollectorSettings, "collector", env={}, flags={name: value})
