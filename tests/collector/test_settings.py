"""The collector's settings load as an operator writes them, and wrong ones are named."""

from pathlib import Path

import pytest

from gpuwarden.settings import SettingsError, load
from gpuwarden_collector.settings import CollectorSettings


def test_a_file_and_the_environment_say_the_same_kind_of_thing(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    path.write_text('port = 9000\nrules_dirs = ["/a"]\n')
    loaded = load(CollectorSettings, "collector", path=path, env={})
    assert loaded.settings.rules_dirs == (Path("/a"),)
    assert loaded.sources["port"] == f"{path}:1"
    env = {"GPUWARDEN_COLLECTOR_RULES_DIRS": "/b, /c"}
    settings = load(CollectorSettings, "collector", path=path, env=env).settings
    assert settings.rules_dirs == (Path("/b"), Path("/c"))


@pytest.mark.parametrize(
    ("name", "value"), [("port", 70_000), ("query_processes", 0), ("query_timeout_s", 0.05)]
)
def test_values_out_of_range_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match="must be at"):
        load(CollectorSettings, "collector", env={}, flags={name: value})
