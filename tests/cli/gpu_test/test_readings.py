"""Whatever test programs print, each test that was asked for has one result, and it can be sent."""

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.gpu_test import FAIL, OK, SKIPPED, GpuTestRun, run_of
from gpuwarden_cli.gpu_test.readings import GpuUnderTest, ProgramOutput, of_dcgm, of_nccl
from gpuwarden_cli.gpu_test.run import KERNEL_TESTS

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
GPUS = (GpuUnderTest(4, "GPU-4"), GpuUnderTest(6, "GPU-6"))
NAMES = st.sampled_from([*KERNEL_TESTS, "copy_peer 0", "copy_peer 1", "other"])
SAID = st.one_of(
    st.builds(lambda test: {"begin": test}, NAMES),
    st.builds(
        lambda test, value, wrong, text: {"test": test, "value": value, "wrong": wrong, "finding": text},
        NAMES, st.floats(max_value=1e9) | st.integers(0, 9), st.integers(0, 3), st.text(),
    ),
    st.builds(lambda test, text: {"test": test, "failed": text}, NAMES, st.text()),
    st.builds(lambda text: {"library": text}, st.text()),
    st.builds(lambda text: {"missing": text}, st.text()),
    st.recursive(st.none() | st.text() | st.floats(), st.lists, max_leaves=3),
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(SAID.map(json.dumps) | st.text(), max_size=20), st.text())
def test_any_output_makes_one_result_of_each_test_that_can_be_sent(
    lines: list[str], reason: str
) -> None:
    log = ProgramOutput(GPUS, [*KERNEL_TESTS, "copy_peer 0", "copy_peer 1"])
    for line in lines:
        log.take(line, NOW)
    log.end(reason, NOW + timedelta(seconds=1))
    found = sorted((one.test, one.gpu) for one in log.results)
    assert found == sorted([*((test, 4) for test in KERNEL_TESTS), ("copy_peer", 4), ("copy_peer", 6)])  # fmt: skip
    run = GpuTestRun("n1", "0123456789ab", False, log.results)
    assert run_of(json.loads(json.dumps(run.document())), NOW) == run


def log_of(*lines: object, end: str = "") -> list[tuple[str, str, str]]:
    log = ProgramOutput(GPUS, ["memory", "matmul_fp32", "copy_peer 1"])
    for number, line in enumerate(lines):
        text = line if isinstance(line, str) else json.dumps(line)
        log.take(text, NOW + timedelta(seconds=number))
    log.end(end, NOW + timedelta(minutes=1))
    return [(one.test, one.status, one.finding) for one in log.results]


def test_a_test_that_a_program_begins_again_keeps_its_first_result() -> None:
    done = {"test": "memory", "value": 1.0, "wrong": 0, "finding": "fine"}
    again = {"test": "memory", "failed": "late"}
    found = log_of({"begin": "memory"}, done, {"begin": "memory"}, again)
    assert [one for one in found if one[0] == "memory"] == [("memory", "ok", "fine")]


def test_a_program_that_ends_in_a_test_fails_that_test_and_skips_the_next_ones() -> None:
    well = {"test": "memory", "value": 0, "wrong": 0, "finding": "kept"}
    assert log_of({"library": "torch 2"}, {"begin": "memory"}, well, "warning: x", {"begin": "matmul_fp32"}, end="ended by signal 9") == [
        ("memory", OK, "kept"), ("matmul_fp32", FAIL, "ended by signal 9"), ("copy_peer", SKIPPED, "an earlier test failed"),
    ]  # fmt: skip
    failed = {
        "test": "memory",
        "failed": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    }
    assert log_of({"begin": "memory"}, failed)[0] == ("memory", FAIL, failed["failed"])  # fmt: skip


def test_wrong_elements_fail_a_test_that_has_a_value() -> None:
    said = {"test": "memory", "value": 2, "wrong": 2, "finding": "2 wrong words of 0x55"}
    log = ProgramOutput(GPUS, ["memory"])
    for line in ({"library": "torch 2"}, {"begin": "memory"}, said):
        log.take(json.dumps(line), NOW)
    log.end("", NOW)
    (result,) = log.results
    assert (result.status, result.value, result.finding, result.tool) == (FAIL, 2.0, said["finding"], "torch 2")  # fmt: skip


def test_a_program_that_tests_nothing_fails_or_says_what_is_missing() -> None:
    assert log_of(end="no CUDA")[:2] == [("memory", FAIL, "no CUDA"), ("matmul_fp32", SKIPPED, "an earlier test failed")]  # fmt: skip
    assert {one[1:] for one in log_of({"missing": "no torch"})} == {(SKIPPED, "no torch")}


def test_numbers_of_gpus_are_the_nodes() -> None:
    said = {"test": "copy_peer 1", "value": 9, "wrong": 0, "finding": "the slowest is GPU {0}"}
    assert ("copy_peer", OK, "the slowest is GPU 4") in log_of({"begin": "copy_peer 1"}, said)


@each(
    ("text", "code", "status", "value", "said"),
    [
        ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 362.407 \n#\n", 0, OK, 362.407, "all sums are right"),
        ("# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 9 \n", 1, FAIL, None, "3 sums are wrong"),
        ("n1: Test NCCL failure common.cu:958 'unhandled cuda error'\n\n", 3, FAIL, None,
         "it ended with 3: n1: Test NCCL failure common.cu:958 'unhandled cuda error'"),
        ("", 0, FAIL, None, "it ended with 0: "),
    ],
)  # fmt: skip
def test_all_reduce_perf(text: str, code: int, status: str, value: float | None, said: str) -> None:
    found = of_nccl(text, code, NOW, NOW)
    assert (found.status, found.value, found.finding, found.gpu) == (status, value, said, None)


def dcgm(*results: dict, top: str = "DCGM Diagnostic") -> str:
    tests = [{"name": "memory", "results": list(results), "test_summary": {"status": "Fail"}}]
    return json.dumps({"version": "4.2", top: {"test_categories": [{"category": "Hardware", "tests": tests}]}})  # fmt: skip


@each(
    ("text", "status", "said"),
    [
        (dcgm({"entity_group": "GPU", "entity_id": 0, "status": "Pass"}, {"entity_id": 1, "status": "Skip"}), OK,
         "1 results are Pass, 1 tests were skipped"),
        # DCGM 3, and text before it.
        ("Starting\n" + dcgm({"gpu_ids": "2", "status": "FAIL", "warnings": [{"warning": "page pending", "error_id": 1}]}, top="DCGM GPU Diagnostic"),
         FAIL, "memory of GPU 2: page pending"),
        (dcgm({"status": "Fail", "warnings": ["hot", {"error_id": 7}]}, 7, "x", {"status": 7}), FAIL,  # type: ignore[arg-type]
         "memory of GPU ?: hot, {'error_id': 7}"),
        (dcgm({"entity_id": 3, "status": "Fail"}), FAIL, "memory of GPU 3: no reason given"),
        ('{"runtime_error": "no host engine"}', SKIPPED, "it has no results: no host engine"),
        ("Error: unable to establish a connection\n", SKIPPED, "it has no results: Error: unable to establish a connection"),
        ("", SKIPPED, "it has no results: exit 7"),
        ("[" * 100_000 + "{}", SKIPPED, "it has no results: " + ("[" * 100_000)[:481]),
        ('{"a": {"test_categories": [7, {"tests": [{"results": {}}, null]}]}}', SKIPPED,
         'it has no results: {"a": {"test_categories": [7, {"tests": [{"results": {}}, null]}]}}'),
    ],
)  # fmt: skip
def test_dcgmi(text: str, status: str, said: str) -> None:
    found = of_dcgm(text, 7, 2, NOW, NOW)
    assert (found.status, found.finding, found.tool) == (status, said, "dcgmi diag -r 2")


@settings(max_examples=40)
@given(st.text() | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "test_categories", "tests", "results", "status"]), inner)).map(json.dumps))  # fmt: skip
def test_any_output_of_dcgmi_and_nccl_can_be_sent(text: str) -> None:
    for found in (of_dcgm(text, 0, 1, NOW, NOW), of_nccl(text, 0, NOW, NOW)):
        run = GpuTestRun("n1", "0123456789ab", False, [found])
        assert run_of(json.loads(json.dumps(run.document())), NOW) == run
