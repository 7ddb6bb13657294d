"""Every field of the agent's counters is on the page."""

from dataclasses import fields

from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.exposition import text_of
from gpuwarden_agent.exporter.health import health_families


def text(counters: Counters, rows_not_kept: int = 0) -> str:
    return text_of(health_families("n1", counters, rows_not_kept))


def test_every_counter_but_the_text_is_exported_and_its_name_says_its_kind() -> None:
    exported = {f.name: f.metadata for f in fields(Counters) if f.metadata}
    assert exported.keys() == {f.name for f in fields(Counters)} - {"last_error"}
    for metric in exported.values():
        assert metric["name"].endswith("_total") == (metric["kind"] == "counter"), metric


def test_counters_and_levels_have_their_values_and_zero_is_told() -> None:
    page = text(Counters(ticks=7, spool_bytes=4096), rows_not_kept=2)
    assert 'gpuwarden_agent_ticks_total{node="n1"} 7\n' in page
    assert "# TYPE gpuwarden_agent_spool_bytes gauge\n" in page
    assert 'gpuwarden_agent_spool_bytes{node="n1"} 4096\n' in page
    assert 'gpuwarden_agent_batches_refused_total{node="n1"} 0\n' in page
    assert 'gpuwarden_agent_exporter_rows_dropped_total{node="n1"} 2\n' in page
    assert 'gpuwarden_agent_info{node="n1",version="' in page


def test_counters_by_name_have_a_series_a_name() -> None:
    counters = Counters()
    counters.probe_errors.update({"gpu0": 2, "host": 1})
    page = text(counters)
    assert 'gpuwarden_agent_probe_errors_total{node="n1",probe="gpu0"} 2\n' in page
    assert 'gpuwarden_agent_probe_errors_total{node="n1",probe="host"} 1\n' in page
    assert "readings_late" not in page
