"""Conditions know three answers, and name the evidence for and against them."""

import itertools

import pytest

from gpuwarden_rules.diagnosis.conditions import (
    Unless,
    below,
    every,
    least,
    opposing,
    some,
    supporting,
)
from gpuwarden_rules.diagnosis.features import Features

MAIN, WORKERS = least("main_cpu", "main_busy"), below("workers", "one")


def at(main: bool | None, workers: bool | None) -> Features:
    return Features(
        main_cpu={True: 90.0, False: 10.0, None: None}[main],
        workers={True: 0.0, False: 4.0, None: None}[workers],
    )


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False, None), repeat=2)))
def test_the_truth_tables_are_kleenes(a: bool | None, b: bool | None) -> None:
    features = at(a, b)
    both = False if False in (a, b) else None if None in (a, b) else True
    one = True if True in (a, b) else None if None in (a, b) else False
    assert every(MAIN, WORKERS).holds(features) is both
    assert some(MAIN, WORKERS).holds(features) is one
    assert Unless(MAIN).holds(features) is (a is not True)


def test_evidence_has_the_value_and_the_threshold_for_people_and_programs() -> None:
    (line,) = supporting(MAIN, at(True, None))
    assert (line.feature, line.value, line.comparison, line.threshold) == (
        "main_cpu",
        90.0,
        ">=",
        80,
    )
    assert line.text == "CPU of the main thread (100 %: a core): 90 % (from 80 %)"


def test_what_speaks_against_is_named_absent_data_too() -> None:
    against = list(opposing(every(MAIN, WORKERS), at(False, None)))
    assert against == [
        "CPU of the main thread (100 %: a core): 10 % (not from 80 %)",
        "loader workers: no data",
    ]
    assert list(opposing(some(MAIN, WORKERS), at(True, False))) == []
    assert list(opposing(Unless(MAIN), at(True, None)))
