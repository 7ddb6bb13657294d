"""What a run of GPU tests must be to be stored."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.gpu_test import GPU_TESTS, TESTS, GpuTestError, GpuTestResult, GpuTestRun, run_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RESULT = GpuTestResult("memory", "ok", "kept", "torch 2.9", NOW, NOW + timedelta(seconds=9), 0, "GPU-0", 0.0)  # fmt: skip
RUN = GpuTestRun("n1", "0123456789ab", False, [RESULT])


def document(**changed: Any) -> dict[str, Any]:
    """The run's JSON, its result changed."""
    made = json.loads(json.dumps(RUN.document()))
    made["results"][0] |= changed
    return made


def test_a_run_is_read_as_it_was_written_and_has_the_columns_of_its_table() -> None:
    assert run_of(document(), NOW) == RUN
    (row,) = RUN.rows()
    assert set(row) == set(GPU_TESTS.names)
    (bare,) = run_of(document(value=None, gpu=None, gpu_uuid=None), NOW).rows()
    assert (bare["unit"], bare["value"], bare["gpu"]) == (None, None, None)
    assert (row["unit"], row["ts"]) == ("errors", RESULT.ended_at.replace(tzinfo=None))


@each(
    ("changed", "said"),
    [
        ({"test": "speed"}, f"test: it must be one of {', '.join(TESTS)}"),
        ({"test": []}, "test: it must be one of"),
        ({"status": "warn"}, "status: it must be ok, fail or skipped"),
        ({"status": {}}, "status: it must be"),
        ({"gpu": None}, "gpu and gpu_uuid: give both or neither"),
        ({"gpu": -1}, "gpu: it must be the index"),
        ({"gpu": True}, "gpu: it must be the index"),
        ({"gpu": 1_025}, "gpu: it must be the index"),
        ({"value": 1e15}, "value: it must be a number"),
        ({"value": -1}, "value: it must be a number"),
        ({"value": float("nan")}, "value: it must be a number"),
        ({"value": "1"}, "value: it must be a number"),
        ({"finding": ""}, "finding: it must be a text"),
        ({"finding": "x" * 501}, "finding: it must be a text"),
        ({"tool": "a\u202eb"}, "tool: it must be a text"),
        ({"gpu_uuid": 7}, "gpu_uuid: it must be a text"),
        ({"gpu_uuid": ""}, "gpu_uuid: it must be a text"),
        ({"began_at": "now"}, "began_at: it must be an instant of the last day"),
        ({"began_at": "2026-05-01T12:00:00"}, "began_at: it must be an instant of the last day"),
        ({"began_at": "2026-04-20T12:00:00Z"}, "is the clock of the node right?"),
        ({"ended_at": "2026-05-01T11:00:00Z"}, "ended_at: it must not be before began_at"),
        ({"more": 1}, "results: each must have test, status"),
    ],
)
def test_what_is_wrong_with_a_result_is_one_line(changed: dict, said: str) -> None:
    with pytest.raises(GpuTestError) as raised:
        run_of(document(**changed), NOW)
    assert said in str(raised.value)


@each(
    ("key", "value"),
    [
        ("node", ""), ("node", "a b"), ("node", 1), ("run", "xyz"), ("simulated", 0), ("results", []),
        ("results", {}), ("results", [{}] * 1_001), ("results", ["x"]), ("more", 1),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_run_is_one_line(key: str, value: Any) -> None:
    with pytest.raises(GpuTestError, match=key if key != "more" else "the body must be JSON"):
        run_of({**document(), key: value}, NOW)


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*document(), *document()["results"][0]]), inner)))  # fmt: skip
def test_any_json_is_a_run_or_one_error(found: Any) -> None:
    for body in (found, {**document(), "results": found}, {**document(), "results": [found]}):
        try:
            run_of(body, NOW)
        except GpuTestError as error:
            assert "\n" not in str(error)
