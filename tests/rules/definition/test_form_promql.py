"""A form says its condition in PromQL too, or why it cannot. That both find the same alerts is tested by the packs' cases."""

import pytest
from tests.rules.definition.test_form import form_of, rule_of

UTIL = 'max by (node, gpu, gpu_uuid) ({}(gpuwarden_gpu_util_ratio{{mig_instance=""}}[{}]))'


def said(*lines: str) -> tuple[str, str, str]:
    """Expression, what keeps an alert, and the reason why there is none."""
    promql = rule_of(form_of(*lines)).promql
    assert promql is not None
    return promql.expr, promql.keeps, promql.reason


def test_a_threshold_is_a_function_over_time_with_its_coverage_and_what_keeps_it() -> None:
    expr, keeps, reason = said(
        "of: gpu",
        "window: 3m",
        "measure: {util: avg(util_percent)}",
        "when: util > 90 %",
        "until: util < 80 %",
    )
    util = f"(100 * {UTIL.format('avg_over_time', '3m')})"
    count = UTIL.format("count_over_time", "3m:15s")
    assert expr == f"{util} > 90 and ({count}) >= 9"
    assert keeps == f"{util} >= 80"
    assert reason == ""


def test_conditions_are_joined_negated_and_taken_from_lets() -> None:
    expr, keeps, _ = said(
        "of: gpu",
        "window: 3m",
        "params: {most: 90}",
        "measure: {core: last(temperature_celsius), lost: last(remap_failed)}",
        "let: {hot: core > $most, twice: 2 * core}",
        "when: hot and not lost",
        "until: twice < 50 or lost",
    )
    core = 'max by (node, gpu, gpu_uuid) (last_over_time(gpuwarden_gpu_temperature_celsius{mig_instance=""}[3m]))'
    lost = "max by (node, gpu, gpu_uuid) (last_over_time(gpuwarden_gpu_remap_failed[3m]))"
    assert expr == f"({core} > 90 and {lost} == 0)"
    assert keeps == f"((2 * {core}) >= 50 and {lost} == 0)"


def test_a_share_of_a_bit_is_the_mean_of_a_remainder() -> None:
    expr, _, _ = said(
        "of: gpu",
        "window: 3m",
        "measure: {hot: share(clocks_event_reasons & 64 <> 0)}",
        "when: hot > 5 %",
        "covered: true",
    )
    assert "avg_over_time((floor(gpuwarden_gpu_clocks_event_reasons" in expr
    assert "/ 64) % 2)[3m:15s]" in expr
    assert expr.endswith("> 5")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["of: gpu", "window: 1h", "events: [xid]"], "Its rows are events"),
        (
            ["of: collector", "window: 3m", "measure: {a: max(queue_bytes)}", "when: a > 5"],
            "about the collector",
        ),
        (
            [
                "of: gpu",
                "window: 3m",
                "measure: {a: max(power_watts)}",
                "when: a > gpus.power_limit_max_watts",
            ],
            "is in the inventory",
        ),
        (
            [
                "of: gpu",
                "window: 3m",
                "measure: {a: max(power_watts)}",
                "when: a > 5 and holder.username = 'ada'",
            ],
            "processes and jobs",
        ),
        (
            ["of: gpu", "window: 3m", "measure: {a: last(fabric_state)}", "when: a <> 'completed'"],
            "texts",
        ),
        (
            ["of: gpu", "window: 30m", "measure: {a: sum(busy_seconds)}", "when: a > 5"],
            "PromQL has no word for `sum`",
        ),
    ],
)
def test_what_promql_cannot_say_has_a_reason(lines: list[str], reason: str) -> None:
    expr, _, why = said(*lines)
    assert expr == ""
    assert reason in why


def test_a_summary_with_columns_that_promql_lacks_is_the_title() -> None:
    rule = rule_of(
        form_of("of: gpu", "window: 3m", "measure: {a: max(power_watts)}", "when: a > 5").replace(
            "'{node}'", "'{node} {serial}'\n    page: {title: It draws too much}"
        )
    )
    assert rule.promql is not None
    assert str(rule.promql.summary) == "GPU {gpu} of {node}: It draws too much."
