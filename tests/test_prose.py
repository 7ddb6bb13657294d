"""Sentences that a reader with school English understands: no file gets more odd phrases than it had."""

from pathlib import Path

import pytest
from docs import prose


def test_no_file_has_more_odd_phrases_than_its_baseline() -> None:
    found = [one for path in prose.tracked() for one in prose.findings(path)]
    new = prose.above(found, prose.baseline())
    text = "\n".join(map(str, new))
    assert not new, f"{text}\nreword them; after a file was moved: python -m docs.prose --update"


def test_phrases_are_found_in_texts_comments_and_docstrings_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Lets go of it.\n\nWhat is\n    told.\n"""\n'
        "# It goes\n# on.\nx = 1  # anew, though\n"
        'log.info(f"{x} is no number")\n'
        "let_go_of = anew = None\n"
    )
    found = [(f.line, f.phrase) for f in prose.findings("a.py", tmp_path)]
    expected = [(1, "lets go of"), (3, "is told"), (6, "goes on"), (8, "anew"), (9, "is no number")]
    assert found == expected


def test_code_of_a_page_is_not_prose(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A\n\n`anew` and [a](anew.md)\n\n```\nanew\n```\n\nIt is told\nof anew.\n"
    )
    found = [(f.line, f.phrase) for f in prose.findings("a.md", tmp_path)]
    assert found == [(9, "is told"), (10, "anew")]


@pytest.mark.parametrize(
    "text",
    [
        "There is no GPU, which is no longer needed, and there are no others.",
        "He is told to stop, and told that it works.",
        "Requests are so frequent that they wait for so long that they end.",
        "Go on to later routes. For good reasons it stands for one thing.",
        "Tell clients from which version they come, of which half fails.",
    ],
)
def test_phrases_that_are_right_are_not_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(text)
    assert [f.phrase for f in prose.findings("a.md", tmp_path)] == []


def test_the_baseline_may_only_fall(tmp_path: Path) -> None:
    one = prose.Finding("a.md", 1, "anew", "again")
    moved = prose.Finding("b.md", 1, "anew", "again")
    assert prose.above([one], {"a.md": 1}) == []
    assert prose.above([one, one], {"a.md": 1}) == [one, one]
    assert prose.above([moved], {"a.md": 1}) == [moved]
    assert prose.update([moved], {"a.md": 2}) == {"b.md": 1}
    with pytest.raises(ValueError, match="may only fall"):
        prose.update([one, moved], {"a.md": 1})
