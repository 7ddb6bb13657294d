"""The model alone: what is asked for and when, where the selection is, and what a lost collector does."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.cli.top.fake_source import TOTALS, gpu

from gpuwarden_cli.output import text_width
from gpuwarden_cli.top.columns import COLUMNS, columns_of
from gpuwarden_cli.top.model import (
    AnswerArrived,
    AnswerFailed,
    AskSource,
    Clicked,
    EndTop,
    Pressed,
    Resized,
    State,
    Ticked,
    TopPage,
    step,
    wait_s,
)
from gpuwarden_cli.top.request import (
    GpuAnswer,
    GpuRequest,
    RowsAnswer,
    RowsRequest,
    TopView,
    WhyAnswer,
    WhyRequest,
)
from gpuwarden_cli.top.screen import screen
from gpuwarden_cli.top.text import sparkline

GPUS = 1_000


def answered(request: RowsRequest, gpus: int = GPUS, first: int = 0) -> AnswerArrived:
    rows = [
        gpu(first + n) for n in range(request.offset, min(gpus, request.offset + request.limit))
    ]
    return AnswerArrived(request, RowsAnswer(TOTALS, rows, gpus))


class Driven:
    """A model with a clock, and its requests."""

    def __init__(self, **state: object) -> None:
        self.state = State("here", page=TopPage(TopView.GPUS), **state)
        self.now_s = 100.0
        self.asked: list[object] = []

    def do(self, event: object, after_s: float = 0.0) -> list[object]:
        self.now_s += after_s
        self.state, effects = step(self.state, event, self.now_s)
        self.asked += [effect.request for effect in effects if isinstance(effect, AskSource)]
        return list(effects)

    def keys(self, *names: str) -> None:
        for name in names:
            self.do(Pressed(name, name if len(name) == 1 else None))

    def answer(self, gpus: int = GPUS) -> None:
        request = self.state.asked
        assert isinstance(request, RowsRequest)
        self.do(answered(request, gpus))


def begun(**state: object) -> Driven:
    driven = Driven(**state)
    driven.do(Ticked())
    driven.answer()
    return driven


def test_a_refresh_asks_for_the_rows_on_screen_and_no_more() -> None:
    driven = begun()
    assert driven.asked == [RowsRequest(TopView.GPUS, limit=18)]
    assert wait_s(driven.state, driven.now_s) == 2.0
    assert driven.do(Ticked(), after_s=1.9) == []
    assert driven.do(Ticked(), after_s=0.1) == [AskSource(driven.asked[0])]


def test_a_source_that_is_slow_is_asked_less_often() -> None:
    driven = begun()
    driven.do(Ticked(), after_s=2)
    driven.now_s += 0.5
    driven.answer()
    assert wait_s(driven.state, driven.now_s) == 4.5


def test_one_request_is_under_way_and_the_newest_wish_is_asked_next() -> None:
    driven = begun()
    driven.keys("pagedown", "pagedown", "pagedown")
    assert len(driven.asked) == 2, "keys that are held down do not pile up queries"
    driven.answer()
    assert driven.asked[-1].offset == driven.state.page.offset
    assert driven.state.page.at == 54


def test_the_selection_follows_its_row_and_ends_at_the_last() -> None:
    driven = begun()
    driven.keys("down", "down")
    assert driven.state.page.selected == "GPU-2"
    driven.do(Ticked(), after_s=2)
    request = driven.state.asked
    rows = [gpu(n) for n in (2, 0, 1, *range(3, 18))]
    driven.do(AnswerArrived(request, RowsAnswer(TOTALS, rows, GPUS)))
    assert driven.state.page.at == 0
    driven.keys("end")
    assert (driven.state.page.at, driven.state.page.offset) == (GPUS - 1, GPUS - 18)
    driven.answer()
    driven.do(Ticked(), after_s=2)
    driven.do(AnswerArrived(driven.state.asked, RowsAnswer(TOTALS, [], 5)))
    assert (driven.state.page.at, driven.state.page.offset) == (4, 0), "GPUs left meanwhile"


def test_enter_goes_in_and_escape_goes_back_to_where_one_was() -> None:
    driven = begun()
    driven.keys("down", "enter")
    assert driven.asked[-1] == GpuRequest("GPU-1", 60)
    driven.do(AnswerArrived(driven.asked[-1], GpuAnswer(TOTALS, gpu(1))))
    assert driven.state.gpu is not None
    driven.keys("escape")
    assert driven.state.page.at == 1
    driven.answer()
    driven.keys("escape")
    assert driven.state.page.gpu is None


def test_a_search_is_asked_as_it_is_typed_and_escape_ends_it() -> None:
    driven = begun()
    driven.keys("slash", "q", "7")
    assert driven.state.typing == "q7", "q is a letter here"
    driven.answer()
    assert driven.asked[-1].text == "q7"
    driven.keys("backspace", "enter")
    driven.answer()
    assert (driven.asked[-1].text, driven.state.typing) == ("q", None)
    driven.answer()
    driven.keys("escape")
    assert driven.asked[-1].text == ""


def test_sorting_goes_through_the_columns_numbers_largest_first() -> None:
    driven = begun()
    for column in COLUMNS[TopView.GPUS]:
        driven.keys("right")
        driven.answer()
        assert (driven.state.page.sort, driven.state.page.is_descending) == (column.key, column.is_right)  # fmt: skip
        if driven.state.asked is not None:
            driven.answer()
    driven.keys("right")
    assert driven.state.page.sort == ""
    driven.keys("left", "r")
    assert driven.state.page.is_descending is not COLUMNS[TopView.GPUS][-1].is_right


def test_a_collector_that_does_not_answer_is_asked_again_and_rows_stay() -> None:
    driven = begun()
    driven.do(Ticked(), after_s=2)
    driven.do(AnswerFailed(driven.state.asked, "no collector answers"))
    assert driven.state.rows is not None
    waits = []
    for _ in range(5):
        waits.append(driven.state.next_at_s - driven.now_s)
        driven.do(Ticked(), after_s=waits[-1])
        driven.do(AnswerFailed(driven.state.asked, "no collector answers"))
    assert waits == [2, 4, 8, 10, 10]
    title = screen(driven.state, driven.now_s)[0][0].text
    assert title.startswith("no answer for 34s, trying again: no collector answers")
    driven.keys("down")
    assert driven.state.asked is None, "keys do not hurry it"
    driven.do(Ticked(), after_s=10)
    driven.answer()
    assert driven.state.problem is None


def test_a_refusal_is_shown_and_a_key_asks_again() -> None:
    driven = begun()
    driven.do(Ticked(), after_s=2)
    driven.do(AnswerFailed(driven.state.asked, "this needs a token", is_refusal=True))
    assert "refused: this needs a token" in screen(driven.state, driven.now_s)[0][0].text
    driven.keys("2")
    assert driven.state.asked is not None


def test_why_is_asked_about_what_is_selected_and_any_key_goes_back() -> None:
    driven = begun()
    driven.keys("w")
    assert driven.asked[-1] == WhyRequest("GPU-0")
    driven.do(AnswerArrived(driven.asked[-1], WhyAnswer(["LOADER_WORKERS"])))
    assert driven.state.overlay.lines == ["LOADER_WORKERS"]
    driven.keys("x")
    assert driven.state.overlay is None
    driven.keys("w")
    driven.do(AnswerFailed(WhyRequest("GPU-0"), "it needs a collector", is_refusal=True))
    assert driven.state.overlay.lines == ["it needs a collector"]
    assert driven.state.problem is None


def test_paused_nothing_is_asked_until_a_key_needs_it() -> None:
    driven = begun()
    driven.keys("p")
    assert wait_s(driven.state, driven.now_s) is None
    assert driven.do(Ticked(), after_s=60) == []
    driven.keys("pagedown", "pagedown")
    assert driven.state.asked is not None


def test_q_and_control_c_end_it() -> None:
    driven = begun()
    assert driven.do(Pressed("q", "q")) == [EndTop()]
    driven.keys("slash")
    assert driven.do(Pressed("ctrl+c")) == [EndTop()]


KEYS = [
    "up", "down", "pageup", "pagedown", "home", "end", "enter", "escape", "slash", "left", "right", "r", "w", "p",
    "question_mark", "plus", "minus", "1", "2", "3", "4", "5", "tab", "shift+tab", "x", "backspace", "f5",
]  # fmt: skip
EVENTS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: Pressed(key, key if len(key) == 1 else None)),
    st.builds(Resized, st.integers(1, 250), st.integers(1, 80)),
    st.builds(Clicked, st.integers(0, 80)),
    st.just(Ticked()),
    st.tuples(st.just("answer"), st.integers(0, 60)),
    st.just("fail"),
)
HOSTILE = st.text(max_size=30)


@given(st.lists(EVENTS, max_size=40), HOSTILE)
def test_whatever_happens_the_screen_has_its_size_and_the_selection_is_a_row(
    events: list[object], name: str
) -> None:
    driven = Driven()
    driven.do(Ticked())
    for event in events:
        asked = driven.state.asked
        if event == "fail":
            if asked is not None:
                driven.do(AnswerFailed(asked, name), after_s=1)
        elif isinstance(event, tuple):
            if isinstance(asked, RowsRequest):
                named = dict.fromkeys(("node", "place", "job", "alert", "process"), name)
                count = event[1]
                places = range(asked.offset, min(count, asked.offset + asked.limit))
                rows = [{**gpu(n), **named} for n in places]
                totals = {**TOTALS, "util_percent": None}
                driven.do(AnswerArrived(asked, RowsAnswer(totals, rows, count)), after_s=0.1)
                if driven.state.rows is not None and driven.state.rows.count:
                    assert 0 <= driven.state.page.at < driven.state.rows.count
            elif isinstance(asked, GpuRequest):
                row = {"place": name, "gpu_uuid": name}
                driven.do(AnswerArrived(asked, GpuAnswer(TOTALS, row, {}, [{"pid": 1}], [{}])))
            elif asked is not None:
                driven.do(AnswerArrived(asked, WhyAnswer([name, name])))
        else:
            driven.do(event, after_s=0.5)
        lines = screen(driven.state, driven.now_s)
        assert len(lines) == driven.state.height
        for line in lines:
            text = "".join(span.text for span in line)
            assert text_width(text) <= driven.state.width
            assert text.isprintable()


def test_each_screen_has_the_column_that_names_its_rows() -> None:
    for view in TopView:
        for width in (10, 40, 78, 198):
            shown = columns_of(view, width)
            assert sum(w + 1 for _, w in shown) <= max(width + 1, shown[0][1] + 1)
            assert shown[0][0] is COLUMNS[view][0]
    assert len(columns_of(TopView.GPUS, 78)) >= 8
    assert replace(State("x"), width=80).body_height == 18


def test_a_sparkline_has_a_bar_for_each_value() -> None:
    assert sparkline([0, 50, 100, None, 200, -5], 100.0) == "▁▅█ █▁"
    assert sparkline([None, None]) == "  "
