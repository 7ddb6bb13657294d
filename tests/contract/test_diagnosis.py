"""Classes and table of a diagnosis agree."""

from dataclasses import fields

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, MEANINGS, Bottleneck, Diagnosis
from gpuwarden.schema import DIAGNOSES, UPSERTED


def test_every_class_has_a_meaning_that_is_a_sentence() -> None:
    assert list(MEANINGS) == list(Bottleneck)
    assert all(text.endswith(".") for text in MEANINGS.values())
    assert not HEALTHY & INPUT_BOUND


def test_the_table_has_a_column_for_each_field() -> None:
    assert {f.name for f in fields(Diagnosis)} == set(DIAGNOSES.names)
    assert DIAGNOSES.name in UPSERTED
