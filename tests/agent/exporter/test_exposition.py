"""The text format: what is written reads back as it was."""

import math
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.exporter.exposition import Family, label_text, text_of

texts = st.text(st.characters(exclude_categories=("Cs",)))


def family(name: str = "a_watts", help: str = "Power.") -> Family:
    made = Family(name, "gauge", help)
    made.put('{gpu="0"}', 1.5)
    return made


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text, flags=re.DOTALL)


def test_a_family_is_help_type_and_its_series() -> None:
    made = family()
    made.put('{gpu="1"}', 2)
    assert text_of([made]) == (
        '# HELP a_watts Power.\n# TYPE a_watts gauge\na_watts{gpu="0"} 1.5\na_watts{gpu="1"} 2\n'
    )


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_value_that_is_none_is_no_series_and_a_family_without_series_is_not_there(
    value: float | None,
) -> None:
    made = Family("a_watts", "gauge", "Power.")
    made.put("", value)
    assert text_of([made]) == ""


def test_a_flag_is_one_or_zero() -> None:
    made = Family("a", "gauge", "A flag.")
    made.put("", True)
    assert text_of([made]).endswith("\na 1\n")


def test_a_series_and_a_family_stand_once() -> None:
    first, second = family(), family(help="Other.")
    first.put('{gpu="0"}', 99.0)
    text = text_of([first, second])
    assert text.count('a_watts{gpu="0"} 1.5') == 1
    assert "99" not in text and "Other" not in text


def test_labels_that_are_absent_are_left_out() -> None:
    assert label_text({"gpu": 0, "model": None, "node": "n"}) == '{gpu="0",node="n"}'
    assert label_text({"model": None}) == ""


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä"])
def test_a_name_that_no_scraper_reads_is_a_bug(name: str) -> None:
    with pytest.raises(AssertionError):
        Family(name, "gauge", "")
    with pytest.raises(AssertionError):
        label_text({name: "x"})


@given(texts)
def test_a_label_value_reads_back_and_stays_on_its_line(value: str) -> None:
    text = label_text({"a": value})
    assert "\n" not in text
    match = re.fullmatch(r'\{a="((?:[^"\\]|\\.)*)"\}', text, flags=re.DOTALL)
    assert match is not None and unescaped(match[1]) == value


@given(texts)
def test_help_reads_back_and_stays_on_its_line(help: str) -> None:
    lines = text_of([family(help=help)]).split("\n")
    assert len(lines) == 4
    assert unescaped(lines[0].removeprefix("# HELP a_watts ")) == help


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_a_number_reads_back_exactly(value: float) -> None:
    made = Family("a", "gauge", "")
    made.put("", value)
    assert float(text_of([made]).split("\n")[2].split(" ")[1]) == float(value)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on the PATH")
def test_promtool_reads_labels_with_everything_in_them() -> None:
    made = Family("a_watts", "gauge", 'Quote ", backslash \\ and\nnew line.')
    made.put(label_text({"a": '\\ " \n {}=, é 漢'}), 1e-300)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text_of([made]).encode(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
