"""The model alone: what is asked for and when, where the selection is, and what a lost collector does."""

from hypothesis import given
from hypothesis import strategies as st
from tests.cli.top.fake_source import TOTALS, gpu

from gpuwarden_cli.output import text_width
from gpuwarden_cli.top.model import (
    AnswerArrived,
    AnswerFailed,
    AskSource,
    Clicked,
    Pressed,
    Resized,
    State,
    Ticked,
    TopPage,
    step,
    wait_s,
)
from gpuwarden_cli.top.request import (
    GPU_METRICS,
    HOST_METRICS,
    GpuAnswer,
    GpuRequest,
    NodeAnswer,
    NodeRequest,
    RowsAnswer,
    RowsRequest,
    TopView,
    WhyAnswer,
)
from gpuwarden_cli.top.screen import screen

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


def test_a_click_opens_a_tab_sorts_by_a_title_selects_a_row_and_opens_it() -> None:
    driven = begun()
    driven.do(Clicked(4, 30))  # the title of a column of numbers
    driven.answer()
    first = driven.state.page.sort, driven.state.page.is_descending
    assert first == ("util_percent", True)
    driven.do(Clicked(4, 30))
    driven.answer()
    assert (driven.state.page.sort, driven.state.page.is_descending) == ("util_percent", False)
    driven.do(Clicked(7))
    assert driven.state.page.at == 2
    driven.do(Clicked(7))
    assert driven.state.page.gpu == "GPU-2"
    driven.do(Clicked(3, 23))
    assert driven.state.page == TopPage(TopView.PROCESSES)
    driven.do(Clicked(3, 79))
    assert driven.state.page.view is TopView.PROCESSES, "there is no tab"


def node_answer(gpus: int) -> NodeAnswer:
    rows = [gpu(n) for n in range(gpus)]
    return NodeAnswer(TOTALS, rows, {"cpu_percent": [1.0] * 240}, {}, [])


def test_graphs_of_a_node_have_a_span_and_a_metric_and_a_click_opens_their_gpu() -> None:
    driven = begun()
    driven.keys("g")
    assert driven.asked[-1] == NodeRequest("gpu-00000", "util_percent", 150, 300)
    driven.do(AnswerArrived(driven.asked[-1], node_answer(8)))
    said = "\n".join("".join(span.text for span in line) for line in screen(driven.state, 0.0))
    assert "CPU" in said and "GPU 7" in said and "-2m" in said
    driven.keys("m", "s")
    driven.do(AnswerArrived(driven.asked[-1], node_answer(8)))
    assert driven.asked[-1] == NodeRequest("gpu-00000", "memory_percent", 240, 1800)
    lines = ["".join(span.text for span in line) for line in screen(driven.state, 0.0)]
    y = next(y for y, line in enumerate(lines) if "GPU 4" in line)
    driven.do(Clicked(y, lines[y].index("GPU 4")))
    assert driven.state.page.gpu == "GPU-4"
    driven.keys("escape", "escape")
    assert driven.state.page.has_rows


def test_the_tree_is_asked_for_and_rows_of_it_open_and_close() -> None:
    driven = begun()
    driven.keys("3", "t")
    driven.do(AnswerArrived(driven.state.asked, RowsAnswer(TOTALS, [], 0)))
    asked = driven.state.asked
    assert isinstance(asked, RowsRequest) and asked.is_tree and not asked.toggled
    head = {"process": "job 7", "depth": 0, "is_open": True, "place": "job 7"}
    driven.do(AnswerArrived(asked, RowsAnswer(TOTALS, [head], 1)))
    assert "▾ job 7" in "".join(span.text for span in screen(driven.state, 0.0)[5])
    driven.keys("space")
    assert driven.state.asked.toggled == {"job 7"}
    driven.do(AnswerArrived(driven.state.asked, RowsAnswer(TOTALS, [{**head, "is_open": False}], 1)))  # fmt: skip
    assert "▸ job 7" in "".join(span.text for span in screen(driven.state, 0.0)[5])
    driven.keys("enter")
    assert driven.state.toggled == frozenset()
    assert not driven.state.is_paused
    driven.keys("t")
    assert not driven.state.request.is_tree


KEYS = [
    "up", "down", "pageup", "pagedown", "home", "end", "enter", "escape", "slash", "left", "right", "r", "w", "p",
    "question_mark", "plus", "minus", "1", "2", "3", "4", "5", "tab", "shift+tab", "x", "backspace", "f5",
    "g", "m", "s", "t", "o", "c", "space",
]  # fmt: skip
EVENTS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: Pressed(key, key if len(key) == 1 else None)),
    st.builds(Resized, st.integers(1, 250), st.integers(1, 80)),
    st.builds(Clicked, st.integers(0, 80), st.integers(0, 250)),
    st.just(Ticked()),
    st.tuples(st.just("answer"), st.integers(0, 60)),
    st.just("fail"),
)
HOSTILE = st.text(max_size=30)


READINGS = st.lists(st.none() | st.floats(0, 1e12), max_size=20)


@given(st.lists(EVENTS, max_size=40), HOSTILE, READINGS)
def test_whatever_happens_the_screen_has_its_size_and_the_selection_is_a_row(
    events: list[object], name: str, readings: list[float | None]
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
                below = {"depth": asked.limit % 3, "is_open": None} if asked.is_tree else {}
                rows = [{**gpu(n), **named, **below} for n in places]
                totals = {**TOTALS, "util_percent": None}
                driven.do(AnswerArrived(asked, RowsAnswer(totals, rows, count)), after_s=0.1)
                if driven.state.rows is not None and driven.state.rows.count:
                    assert 0 <= driven.state.page.at < driven.state.rows.count
            elif isinstance(asked, GpuRequest):
                row = {"place": name, "gpu_uuid": name}
                series = dict.fromkeys(GPU_METRICS, readings)
                driven.do(AnswerArrived(asked, GpuAnswer(TOTALS, row, series, [{"pid": 1}], [{}])))
            elif isinstance(asked, NodeRequest):
                gpus = [{**gpu(n), "gpu_uuid": f"{name}{n}"} for n in range(event[1])]
                host = dict.fromkeys(HOST_METRICS, readings)
                series = {str(row["gpu_uuid"]): readings for row in gpus}
                answer = NodeAnswer(TOTALS, gpus, host, series, [{"pid": 1, "command": name}])
                driven.do(AnswerArrived(asked, answer))
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


def test_a_refusal_is_shown_and_a_key_asks_again() -> None:
    driven = begun()
    driven.do(Ticked(), after_s=2)
    driven.do(AnswerFailed(driven.state.asked, "this needs a token", is_refusal=True))
    assert "refused: this needs a token" in screen(driven.state, driven.now_s)[0][0].text
    driven.keys("2")
    assert driven.state.asked is not None
