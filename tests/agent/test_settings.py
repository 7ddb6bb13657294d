"""Settings of the agent."""

from dataclasses import fields

import pytest

from gpuwarden.settings import SettingsError, load
from gpuwarden_agent.settings import AgentSettings


def test_environment_names_node_and_labels() -> None:
    env = {"GPUWARDEN_AGENT_NODE": "n7", "GPUWARDEN_AGENT_LABELS": "rack=12,owner=vision"}
    settings = load(AgentSettings, "agent", env=env).settings
    assert settings.node_name == "n7"
    assert settings.labels == {"rack": "12", "owner": "vision"}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("http://c:8750", ("http://c:8750",)),
        ("http://a:8750, http://b:8750,http://a:8750", ("http://a:8750", "http://b:8750")),
    ],
)
def test_one_setting_has_the_addresses_of_one_collector_or_of_several(
    text: str, addresses: tuple[str, ...]
) -> None:
    env = {"GPUWARDEN_AGENT_COLLECTOR_URL": text}
    assert load(AgentSettings, "agent", env=env).settings.collectors == addresses


def test_a_batch_is_at_least_a_tick() -> None:
    assert AgentSettings(interval_s=10, batch_s=5).batch_ms == 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [("INTERVAL_S", "0"), ("BACKEND", "amd"), ("SPOOL_BYTES_MAX", "10"), ("BATCH_S", "-1")],
)
def test_impossible_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match="must be"):
        load(AgentSettings, "agent", env={f"GPUWARDEN_AGENT_{name}": value})


def test_every_setting_says_what_it_means() -> None:
    assert all(f.metadata["meaning"].endswith(".") for f in fields(AgentSettings))
