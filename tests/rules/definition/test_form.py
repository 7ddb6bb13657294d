"""A rule's form is compiled to SQL that gives the rows an author would have written it for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_rules.definition.expressions import Scope, rewritten
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.yaml_positions import RuleFileError
from gpuwarden_rules.testing.database import MemoryDatabase

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
COUNTED = {"samples": 60, "detail_samples": 6, "health_samples": 1}
HOT = """
  - name: hot
    severity: warning
    summary: "{node} GPU {gpu} ({model}): {hottest:.0f} °C"
    remedy: Check the air flow of {node}.
    of: gpu
    window: 3m
    measure: {hottest: max(temperature_celsius)}
    when: hottest > 95 C
    until: hottest < 90 C
"""


def rule_of(text: str) -> Rule:
    (rule,) = parse(f"rules:{text}", "r.yaml")
    return rule


def problems_of(text: str) -> list[str]:
    with pytest.raises(RuleFileError) as caught:
        parse(f"rules:{text}", "r.yaml")
    return [str(problem) for problem in caught.value.problems]


def form_of(*lines: str) -> str:
    """A rule with these lines for its form."""
    head = "\n  - name: r\n    severity: info\n    summary: '{node}'\n    remedy: r\n"
    return head + "".join(f"    {line}\n" for line in lines)


def samples(
    database: MemoryDatabase,
    uuid: str,
    seconds: int = 180,
    table: str = "gpu_samples",
    **columns: Any,
) -> None:
    """A reading each second up to now; a callable column gets the seconds before now."""
    rows = [
        {
            "ts": NOW - timedelta(seconds=ago),
            "node": "n1",
            "gpu": 0,
            "gpu_uuid": uuid,
            "simulated": False,
            **{name: value(ago) if callable(value) else value for name, value in columns.items()},
        }
        for ago in range(seconds)
    ]
    database.insert(table, rows)


def rows_of(database: MemoryDatabase, rule: Rule) -> list[dict[str, Any]]:
    return database.run(rule.sql, rule.bindings(NOW)).records()


def judged(database: MemoryDatabase, rule: Rule) -> dict[str, Any]:
    """What holds, by GPU: True, or None where it is unknown or between the thresholds."""
    return {row["gpu_uuid"]: row["holds"] for row in rows_of(database, rule)}


def test_a_condition_holds_is_between_its_thresholds_or_has_ended(database) -> None:
    rule = rule_of(HOT)
    celsius_of = {"GPU-hot": 96, "GPU-between": 93, "GPU-cool": 80, "GPU-mute": None}
    for uuid, celsius in celsius_of.items():
        samples(database, uuid, temperature_celsius=celsius)
    samples(database, "MIG-a", temperature_celsius=99, mig_instance="1g.10gb")
    assert judged(database, rule) == {"GPU-hot": True, "GPU-between": None, "GPU-mute": None}
    assert rule.labels == ("node", "gpu", "gpu_uuid")
    assert rule.requires == (("gpu_samples", "temperature_celsius"),)


def test_without_until_a_condition_ends_when_it_is_false(database) -> None:
    rule = rule_of(HOT.replace("    until: hottest < 90 C\n", ""))
    for uuid, celsius in (("GPU-hot", 96), ("GPU-warm", 93), ("GPU-mute", None)):
        samples(database, uuid, temperature_celsius=celsius)
    assert judged(database, rule) == {"GPU-hot": True, "GPU-mute": None}


def test_a_condition_begins_only_when_three_quarters_of_its_window_are_known(database) -> None:
    rule = rule_of(HOT)
    samples(database, "GPU-new", seconds=90, temperature_celsius=99)
    samples(database, "GPU-old", seconds=150, temperature_celsius=99)
    assert judged(database, rule) == {"GPU-new": None, "GPU-old": True}
    eager = rule_of(f"{HOT}    covered: coverage(temperature_celsius) >= 25 %\n".replace("covered: coverage(temperature_celsius)", "covered: known").replace("measure: {hottest: max(temperature_celsius)}", "measure: {hottest: max(temperature_celsius), known: coverage(temperature_celsius)}"))  # fmt: skip
    assert judged(database, eager) == {"GPU-new": True, "GPU-old": True}


def test_measures_of_two_tables_are_joined_and_one_may_be_absent(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 3m",
            "measure: {core: avg(temperature_celsius), margin: p50(temperature_margin_celsius)}",
            "when: margin < 5 or core > 95",
        )
    )
    samples(database, "GPU-core", temperature_celsius=99)
    samples(database, "GPU-cool", temperature_celsius=50)
    for uuid, margin in (("GPU-margin", 2), ("GPU-cool", 40)):
        samples(database, uuid, table="gpu_detail_samples", temperature_margin_celsius=margin)
    assert judged(database, rule) == {"GPU-core": True, "GPU-margin": None}


def test_a_share_is_in_percent_and_a_counter_grows_from_its_lowest_value(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 3m",
            "measure:",
            "  hot: share(clocks_event_reasons & 64 <> 0)",
            "  grown: delta(hw_thermal_seconds_total)",
            "  pace: rate(hw_thermal_seconds_total)",
            "  newest: last(power_watts)",
            "  oldest: first(power_watts)",
            "  slow_since: since(clocks_event_reasons & 64 <> 0)",
            "when: hot >= 25 %",
        )
    )
    samples(
        database,
        "GPU-a",
        clocks_event_reasons=lambda ago: 64 if ago < 60 else 0,
        # Its driver was loaded again 60 s ago.
        hw_thermal_seconds_total=lambda ago: (59 - ago) if ago < 60 else 1000.0,
        power_watts=lambda ago: float(ago),
    )
    (row,) = rows_of(database, rule)
    assert row["hot"] == pytest.approx(100 * 60 / 180)
    assert row["grown"] == 59
    assert row["pace"] == pytest.approx(59 / 179)
    assert (row["newest"], row["oldest"]) == (0, 179)
    assert row["slow_since"] == NOW - timedelta(seconds=59)


def test_the_newest_reading_may_be_none_and_then_nothing_is_required(database) -> None:
    rule = rule_of(
        form_of(
            "of: collector",
            "window: 3m",
            "measure: {trouble: newest(storage_trouble), last_at: max(ts)}",
            "let: {silent: age(last_at)}",
            "when: trouble is not null or silent > 2m",
        ).replace("{node}", "{host}")
    )
    assert rule.requires == ()
    told = {"over": ("it is away", None), "begun": (None, "it is away"), "silent": (None,)}
    for host, troubles in told.items():
        counts = ("batches", "refused_batches", "commit_failures", "task_failures")
        fixed = dict.fromkeys((*counts, "queue_bytes", "disk_used_bytes"), 0)
        fixed |= {"collector": host, "host": host, "version": "1"}
        rows = [
            {"ts": NOW - timedelta(seconds=150 - 60 * n), **fixed, "storage_trouble": trouble}
            for n, trouble in enumerate(troubles)
        ]
        database.insert("collector_samples", rows)
    rows = rows_of(database, rule)
    assert {(row["host"], row["trouble"], row["silent"], row["holds"]) for row in rows} == {
        ("begun", "it is away", 90, True),
        ("silent", None, 150, True),
    }


def test_further_labels_are_of_any_table_of_the_subject(database) -> None:
    rule = rule_of(
        form_of(
            "of: node",
            "by: [probe]",
            "window: 10m",
            "measure: {late: sum(late)}",
            "when: late > 5",
        )
    )
    assert rule.labels == ("node", "probe")
    counts = {"expected": 60, "taken": 40, "missed": 0, "skipped": 0, "failed": 0}
    row = {"ts": NOW - timedelta(minutes=1), "node": "n1", "simulated": False, **counts}
    lates = [{"probe": probe, "late": late} for probe, late in (("gpu0", 20), ("gpu1", 0))]
    database.insert("coverage", [{**row, "table_name": "gpu_samples", **one} for one in lates])
    rows = rows_of(database, rule)
    assert [(row["probe"], row["late"], row["holds"]) for row in rows] == [("gpu0", 20, True)]


def test_a_let_may_be_a_label(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "by: [job]",
            "window: 3m",
            "measure: {util: avg(util_percent)}",
            "let: {job: \"coalesce(holder.job, 'pid ' || holder.pid)\"}",
            "when: util < 5 %",
        )
    )
    assert rule.labels == ("node", "gpu", "gpu_uuid", "job")
    for number, job in enumerate(("7", None)):
        uuid = f"GPU-{number}"
        samples(database, uuid, util_percent=1)
        process = {"node": "n1", "gpu_uuid": uuid, "ts": NOW, "simulated": False, "pid": 9}
        database.insert("process_samples", [process | {"job": job}])
    rows = rows_of(database, rule)
    assert {(row["gpu_uuid"], row["job"], row["holds"]) for row in rows} == {
        ("GPU-0", "7", True),
        ("GPU-1", "pid 9", True),
    }


def test_a_long_window_is_read_from_minutes_and_hours(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 30m",
            "measure: {util: avg(util_percent), links: max(nvlinks_active) over 7d}",
            "when: util < 5 % and links > 0",
        )
    )
    assert rule.requires == (("gpu_1h", "nvlinks_active_max"), ("gpu_1m", "util_percent_avg"))
    place = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False}
    minutes = [
        {**place, "ts": NOW - timedelta(minutes=ago), "util_percent_avg": 1.0, **COUNTED}
        for ago in range(2, 33)
    ]
    database.insert("gpu_1m", minutes)
    assert judged(database, rule) == {"GPU-a": None}
    database.insert(
        "gpu_1h", [{**place, "ts": NOW - timedelta(hours=9), "nvlinks_active_max": 18, **COUNTED}]
    )
    assert judged(database, rule) == {"GPU-a": True}


def test_readings_of_a_minute_are_read_themselves_and_a_flag_is_no_value(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 1h",
            "measure: {failed: last(remap_failed), errors: delta(ecc_corrected_volatile_total)}",
            "when: failed",
        )
    )
    assert rule.requires == (("gpu_health_samples", "remap_failed"),)
    total = {"remap_failed": True, "ecc_corrected_volatile_total": lambda ago: 9 if ago < 5 else 2}
    samples(database, "GPU-a", table="gpu_health_samples", **total)
    samples(database, "GPU-b", table="gpu_health_samples", remap_failed=False)
    (row,) = rows_of(database, rule)
    assert (row["gpu_uuid"], row["holds"], row["value"]) == ("GPU-a", True, 7)


def test_a_gpu_has_the_minutes_of_its_processes_and_a_job_may_be_absent(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 3m",
            "measure: {used: max(memory_used_bytes), pids: count(pid) filter (age < 1h) over 6h}",
            "when: used > 1GB and coalesce(pids, 0) = 0",
        )
    )
    for uuid in ("GPU-a", "GPU-b"):
        samples(database, uuid, memory_used_bytes=2e9)
    minute = {"ts": NOW - timedelta(minutes=5), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a"}
    database.insert("process_1m", [{**minute, "simulated": False, "pid": 7, "samples": 6}])
    assert judged(database, rule) == {"GPU-b": True}
    of_job = form_of("of: job", "window: 3m", "measure: {a: count(value)}", "when: a > 1")
    assert ("progress_samples", "job") in rule_of(of_job).optional


def test_texts_have_the_inventory_the_price_and_who_holds_the_gpu(database) -> None:
    text = HOT.replace("({model})", "({model}, {serial}), {username}, job {job}")
    text += "    let: {usd_per_hour: gpus.usd_per_hour}\n"
    rule = rule_of(text)
    samples(database, "GPU-a", temperature_celsius=99)
    gpu = {"gpu_uuid": "GPU-a", "node": "n1", "model": "H100", "serial": "17", "usd_per_hour": 2.5}
    database.insert("gpus", [gpu | {"simulated": False}])
    process = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "ts": NOW, "simulated": False}
    database.insert(
        "process_samples",
        [
            process | {"pid": 1, "username": "root", "gpu_memory_bytes": 1},
            process | {"pid": 2, "username": "ada", "job": "7", "gpu_memory_bytes": 9},
        ],
    )
    (row,) = rows_of(database, rule)
    assert (row["model"], row["serial"], row["usd_per_hour"]) == ("H100", "17", 2.5)
    assert (row["username"], row["job"]) == ("ada", "7")


def test_peers_are_the_gpus_of_the_model(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 3m",
            "measure: {mhz: avg(sm_clock_mhz)}",
            "let:",
            "  usual: peers(mhz)",
            "  peers: count_peers(mhz)",
            "  slower: clamp(100 * (1 - mhz / usual), 0, 40)",
            "when: slower > 10 % and slower <= 40 % and peers >= 3",
        )
    )
    for number, (model, mhz) in enumerate(
        [("A", 1000), ("A", 1000), ("A", 500), ("B", 500), *[(None, 1000), (None, 500)] * 2]
    ):
        samples(database, f"GPU-{number}", sm_clock_mhz=mhz)
        database.insert(
            "gpus",
            [{"gpu_uuid": f"GPU-{number}", "node": "n1", "model": model, "simulated": False}],
        )
    # Those of an unknown model are no peers.
    assert judged(database, rule) == {"GPU-2": True}


def test_siblings_are_the_gpus_of_the_model_in_the_node(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 3m",
            "measure: {links: last(nvlinks_active)}",
            "let: {usual: siblings(links), siblings: count_siblings(links)}",
            "when: links < usual and siblings >= 4",
        )
    )
    for number, links in enumerate([18, 18, 18, 17, 9]):
        node = "n1" if number < 4 else "n2"
        sample = {"ts": NOW, "node": node, "gpu": number, "gpu_uuid": f"GPU-{number}"}
        database.insert(
            "gpu_detail_samples", [sample | {"simulated": False, "nvlinks_active": links}]
        )
        gpu = {"gpu_uuid": f"GPU-{number}", "node": node, "model": "A", "simulated": False}
        database.insert("gpus", [gpu])
    assert judged(database, rule) == {"GPU-3": True}


def events(database: MemoryDatabase, *rows: tuple[int, str, str, str]) -> None:
    place = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "message": "m", "simulated": False}
    rows = [
        {**place, "ts": NOW - timedelta(seconds=ago), "kind": kind, "severity": severity, "details": details}
        for ago, kind, severity, details in rows
    ]  # fmt: skip
    database.insert("events", rows)


def test_events_are_counted_by_a_key_of_their_details_until_a_reboot(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "by: [xid]",
            "events: [xid]",
            "until_reboot: true",
            "window: 1h",
            "where: severity = 'critical' and details.action <> 'IGNORE'",
            "measure: {value: count(*), action: last(details.action)}",
        )
    )
    assert rule.on_events == ("xid", "agent_gap")
    assert rule.requires == (("events", "kind"),)
    events(
        database,
        (900, "xid", "critical", '{"xid": 48, "action": "RESET"}'),
        (600, "xid", "critical", '{"xid": 79, "action": "RESET"}'),
        (300, "xid", "critical", '{"xid": 79, "action": "RESTART"}'),
        (200, "xid", "critical", '{"xid": 13, "action": "IGNORE"}'),
        (100, "xid", "warning", '{"xid": 31, "action": "RESET"}'),
        (90, "xid", "critical", "{not JSON"),
    )
    rows = rows_of(database, rule)
    assert {(row["xid"], row["value"], row["action"]) for row in rows} == {
        ("48", 1, "RESET"),
        ("79", 2, "RESTART"),
    }
    rebooted_ms = int((NOW - timedelta(seconds=500)).timestamp() * 1000)
    events(
        database, (490, "agent_gap", "info", f'{{"rebooted": "true", "last_ts_ms": {rebooted_ms}}}')
    )
    rows = rows_of(database, rule)
    assert [(row["xid"], row["value"]) for row in rows] == [("79", 1)]


GPU = ("of: gpu", "window: 1m")
MOST = "measure: {a: max(power_watts)}"


@each(
    "lines, message",
    [
        (("of: gpus", "window: 1m"), "r.yaml:6:9: 'gpus' is nothing that an alert can be of; did you mean 'gpu'?"),
        (("of: gpu", MOST, "when: a > 1"), "`window` is missing"),
        ((*GPU, "measure: {left: max(power_watts)}", "when: left > 1"), "r.yaml:8:15: 'left' is a word of SQL"),
        ((*GPU, "measure: {hours: max(power_watts)}", "when: hours > 1"), "'hours' is a word of SQL"),
        ((*GPU, MOST, "when: a > epoch(now())"), "r.yaml:9:21: now reads the clock"),
        ((*GPU, "when: a > 1"), "`measure` is missing"),
        ((*GPU, MOST), "`when` is missing"),
        ((*GPU, "measure: {a: max(power_wats)}", "when: a > 1"), "r.yaml:8:22: 'power_wats' is no column of a GPU; did you mean 'power_watts'?"),
        ((*GPU, "measure: {watts: max(power_watts)}", "when: 5 > wats"), "r.yaml:9:15: 'wats' is no measure or column of gpus or nodes; did you mean 'watts'?"),
        ((*GPU, MOST, "when: a > gpus.power_limit_max_wats"), "did you mean 'gpus.power_limit_max_watts'?"),
        ((*GPU, "measure: {a: max(power_watts) - max(fan_percent)}", "when: a > 1"), "fan_percent, power_watts are in different tables; measure each by itself"),
        ((*GPU, "measure:", "  a: share(power_watts, 5)", "when: a > 1"), "share: it takes one argument"),
        ((*GPU, "measure:", "  a: max(power_watts", "when: a > 1"), "r.yaml:9:13: this parenthesis is not closed"),
        ((*GPU, MOST, "when: a > $most"), "$most has no value; known: $now, $window"),
        ((*GPU, MOST, "when: a > 1", "sql: SELECT $now"), "a rule has `of` or `sql`"),
        ((*GPU, "measure: {a: f(power_watts, 1)}", "when: a"), "stands in quotes"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(lines: tuple[str, ...], message: str) -> None:
    found = problems_of(form_of(*lines))
    assert any(message in problem for problem in found), found


def test_a_mistake_makes_no_others() -> None:
    wrong = (*GPU, "measure: {a: max(power_wats)}", "when: a > 1", "caused_by: {node_down: [node]}")
    assert len(problems_of(form_of(*wrong))) == 1


def test_an_expression_may_name_the_price() -> None:
    text = form_of(
        "of: gpu",
        "window: 1m",
        "measure: {watts: max(power_watts)}",
        "let: {usd_per_hour: gpus.usd_per_hour / 2}",
        "when: watts > 1",
    )
    assert ("gpus", "usd_per_hour") in rule_of(text).optional


@each(
    ("text", "sql"),
    [
        ("a > 500MB", "a > 500000000"),
        ("a > 1.5 GiB", "a > 1610612736"),
        ("a > 30m and b < 5 %", "a > 1800 and b < 5"),
        ("(a > 5 %) or b % 5 = 0", "(a > 5) or b % 5 = 0"),
        ("a > 80 C and b > 300W", "a > 80 and b > 300"),
        ("a = '5 % of 30m' and b", "a = '5 % of 30m' and b"),
        ("a > 0.5s", "a > 0.5"),
        ("a::INT > 1e3", "a::INT > 1e3"),
        ("CASE WHEN a > 2h THEN b END", "CASE WHEN a > 7200 THEN b END"),
    ],
)
def test_literals_have_units(text: str, sql: str) -> None:
    assert rewritten(text, Scope({"a": "a", "b": "b"}, {}), _refused) == sql


def _refused(offset: int, message: str) -> None:
    raise AssertionError(f"{offset}: {message}")


@given(st.text(alphabet="ab()'\"$.,:%5 mMBANDend\n", max_size=60))
def test_any_text_is_read_to_its_end(text: str) -> None:
    problems: list[tuple[int, str]] = []
    rewritten(
        text,
        Scope({"a": "a"}, {"b": lambda arguments, given: f"b({len(arguments)})"}),
        lambda *p: problems.append(p),
    )
    assert all(0 <= offset <= len(text) for offset, _ in problems)


PARTS = form_of(
    "of: gpu",
    "window: 2m",
    "each:",
    "  of: link",
    "  where: link_type = 'nvlink'",
    "  measure: {errors: delta(replay_errors_total)}",
    "  let: {is_bad: errors > 0}",
    "measure: {bad: count_if(is_bad), worst: 'arg_max(link, errors)', links: count(*)}",
    "when: bad > 0",
)


def test_a_rule_reads_the_columns_of_its_where() -> None:
    rule = rule_of(
        form_of(
            "of: port", "window: 5m", "where: link_layer = 'InfiniBand'",
            "measure: {drops: delta(link_downed_total)}", "when: drops > 3",
        )
    )  # fmt: skip
    assert ("infiniband_samples", "link_layer") in rule.optional


def test_each_measures_the_parts_of_a_subject_before_the_subject(database) -> None:
    rule = rule_of(PARTS)
    for uuid, link, grows in (("GPU-a", 0, 0), ("GPU-a", 1, 3), ("GPU-b", 0, 0)):

        def errors(ago: int, grows: int = grows) -> int:
            return grows * (200 - ago)

        link_columns = {"link": link, "link_type": "nvlink", "replay_errors_total": errors}
        samples(database, uuid, 120, "link_samples", **link_columns)
    samples(database, "GPU-a", 120, "link_samples", link=7, link_type="c2c", replay_errors_total=9)
    (row,) = rows_of(database, rule)
    assert (row["gpu_uuid"], row["bad"], row["worst"], row["links"]) == ("GPU-a", 1, 1, 2)
    assert rule.labels == ("node", "gpu", "gpu_uuid")
    assert rule.requires == (("link_samples", "replay_errors_total"),)


@each(
    ("text", "problem"),
    [
        (
            form_of(
                "of: gpu",
                "window: 2m",
                "each: {of: node, measure: {busy: avg(cpu_util_percent)}}",
                "measure: {most: max(busy)}",
                "when: most > 5",
            ),
            "a node is no part of a GPU",
        ),
        (PARTS.replace("count_if(is_bad)", "count_if(is_bed)"), "did you mean 'is_bad'?"),
        (PARTS.replace("when: bad > 0", "when: bud > 0"), "did you mean 'bad'?"),
        (PARTS.replace("  of: link", "  of_a: link"), "key 'of' is missing"),
        (
            form_of("of: job", "window: 2m", "expected: 'true'", "measure: {n: count(*)}"),
            "only GPUs and nodes are in the inventory",
        ),
        (
            form_of("of: gpu", "window: 2m", "expected: age(gpus.last_sen_at) < 3d"),
            "did you mean 'gpus.last_seen_at'?",
        ),
    ],
)
def test_problems_of_parts_and_of_what_is_expected_are_named(text: str, problem: str) -> None:
    assert any(problem in one for one in problems_of(text)), problems_of(text)


def test_what_is_expected_is_judged_although_it_sends_nothing(database) -> None:
    rule = rule_of(
        form_of(
            "of: gpu",
            "window: 2m",
            "expected: age(gpus.last_seen_at) < 3d and gpus.replaced_by is null",
            "measure: {answered_at: max(gpu_samples.ts), heard_at: max(host_samples.ts)}",
            "when: answered_at is null and heard_at is not null",
        )
    )
    seen = {"node": "n1", "gpu": 0, "simulated": False, "last_seen_at": NOW - timedelta(hours=1)}
    database.insert("gpus", [{**seen, "gpu_uuid": "GPU-silent"}, {**seen, "gpu_uuid": "GPU-here"}])
    database.insert("gpus", [{**seen, "gpu_uuid": "GPU-away", "node": "n2"}])
    database.insert("gpus", [{**seen, "gpu_uuid": "GPU-old", "replaced_by": "GPU-here"}])
    database.insert(
        "gpus", [{**seen, "gpu_uuid": "GPU-gone", "last_seen_at": NOW - timedelta(days=9)}]
    )
    samples(database, "GPU-here", temperature_celsius=50)
    database.insert("host_samples", [{"ts": NOW, "node": "n1", "simulated": False}])
    assert judged(database, rule) == {"GPU-silent": True}
    assert rule.requires == (("gpus", "last_seen_at"),)


@each(
    ("measure", "when", "required"),
    [
        ("{a: avg(power_watts)}", "a > 5", ["power_watts"]),
        ("{a: avg(power_watts), b: max(util_percent)}", "a > 5 and b > 1", ["power_watts", "util_percent"]),
        ("{a: avg(power_watts), b: max(util_percent)}", "a > 5 or b > 1", []),
        ("{a: avg(power_watts), b: max(util_percent)}", "a > 5 and coalesce(b > 1, true)", ["power_watts"]),
        ("{b: max(util_percent), a: avg(power_watts)}", "b is null and a > 5", ["power_watts"]),
        ("{a: newest(power_watts)}", "a > 5", []),
        ("{a: 'avg(coalesce(power_watts, util_percent))'}", "a > 5", []),
        ("{n: count(power_watts)}", "n >= 3", ["power_watts"]),
        ("{n: count(power_watts)}", "n < 3", []),
    ],
)  # fmt: skip
def test_what_a_rule_requires_follows_from_its_condition(measure, when, required) -> None:
    rule = rule_of(
        form_of("of: gpu", "window: 3m", f"measure: {measure}", f"when: {when}", "covered: true")
    )
    assert rule.requires == tuple(("gpu_samples", name) for name in required)


def test_the_gpus_of_a_job_are_its_parts(database) -> None:
    lines = [
        "of: job",
        "window: 3m",
        "each:",
        "  of: gpu",
        "  measure: {watts: avg(power_watts)}",
        "  let: {job: holder.job}",
        "measure: {watts: sum(watts), gpus: count(*)}",
        "when: job is not null and watts > 300",
    ]
    rule = rule_of(form_of(*lines))
    for uuid, job in (("GPU-a", "7"), ("GPU-b", "7"), ("GPU-c", "8"), ("GPU-free", None)):
        samples(database, uuid, power_watts=200)
        process = {"node": "n1", "gpu": 0, "gpu_uuid": uuid, "ts": NOW, "simulated": False}
        database.insert("process_samples", [process | {"pid": 1, "job": job}] if job else [])
    rows = rows_of(database, rule)
    assert [(row["job"], row["watts"], row["gpus"]) for row in rows if row["holds"]] == [
        ("7", 400, 2)
    ]
    (problem, *_) = problems_of(
        form_of("of: job", "window: 3m", "measure: {w: avg(power_watts)}", "when: w > 3")
    )
    assert "a GPU has it: measure it in `each: {of: gpu, let: {job: holder.job}}`" in problem
