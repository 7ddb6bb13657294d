"""Decides what `gpuwarden top` shows and requests: a pure function of state, event and time.

At most one request is in flight. The next one is for the page as it then is, so a key that is held down causes no
more queries than the source answers. An answer stays on the screen until the next one, also while the source does not
answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

from gpuwarden_cli.top.columns import COLUMNS, TREE_COLUMNS, column_at, tab_at
from gpuwarden_cli.top.pages import PageSize, gpu_lines, graphs_of_node, node_lines
from gpuwarden_cli.top.panels import panel_at
from gpuwarden_cli.top.request import (
    GPU_METRICS,
    KEY,
    SPANS_S,
    Answer,
    GpuAnswer,
    GpuRequest,
    NodeAnswer,
    NodeRequest,
    Request,
    Row,
    RowsAnswer,
    RowsRequest,
    TopView,
    WhyAnswer,
    WhyRequest,
)
from gpuwarden_cli.top.text import Line
from gpuwarden_cli.top.theme import THEMES

HEAD_LINES, FOOT_LINES = 5, 1
"""Lines above and below the rows."""
ROWS_LEFT = 2
"""Cells left of the columns of rows."""
TABS_LINE, TITLES_LINE = 3, 4
"""Lines of the head that a click can be on."""
HISTORY_MAX = 240
"""Refreshes in the graph of the fleet's utilization."""
RETRY_MAX_S = 10.0
SAID_EVERY_S = 1.0
BUSY_SHARE = 0.1
"""Largest share of time that a source is busy: a slow one is asked less often."""
PACE_MAX_S = 15.0
"""Longest interval that BUSY_SHARE can cause."""
VIEWS = tuple(TopView)
BINS = 240
"""Most steps of a graph; a step has two seconds or more, so that a late reading leaves none empty."""
TEXT_MAX = 64
TOGGLED_MAX = 200
"""Rows of the tree that can be opened or closed: their keys are part of each request."""
NO_PAGES = "only a collector has pages: start one with `gpuwarden up`, and top without --local"
_PAGES: Mapping[TopView, Sequence[tuple[str, str]]] = {
    TopView.NODES: (("node", "nodes"),),
    TopView.GPUS: (("gpu_uuid", "gpus"),),
    TopView.PROCESSES: (("gpu_uuid", "gpus"), ("job", "jobs")),
    TopView.JOBS: (("job", "jobs"),),
    TopView.ALERTS: (("alert", "alerts"),),
}
"""Column and folder of the page of a row; the first that the row has."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopPage:
    """A page: rows of a view, or one GPU."""

    view: TopView
    node: str | None = None
    job: str | None = None
    gpu: str | None = None
    """The GPU of a GPU's page."""
    graphs: str | None = None
    """The node of a page of graphs."""
    text: str = ""
    sort: str = ""
    is_descending: bool = False
    offset: int = 0
    at: int = 0
    """Index of the selected row among all rows."""
    selected: str | None = None
    """Key of the selected row: the selection follows it while it is on the screen."""
    scrolled: int = 0
    """Scrolled lines of a page without rows."""

    @property
    def has_rows(self) -> bool:
        """Whether it is rows of a view."""
        return self.gpu is None and self.graphs is None


@dataclass(frozen=True, slots=True)
class Shown:
    """A request and its answer."""

    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The source fails."""

    message: str
    since_s: float
    tries: int = 1
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class Overlay:
    """Text over the page: help or a diagnosis."""

    title: str
    lines: Sequence[str] | None = None
    """None: not answered yet."""
    scrolled: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """The state of `top`. `width` and `height` are of the screen; times are monotonic seconds."""

    source: str
    width: int = 80
    height: int = 24
    every_s: float = 2.0
    page: TopPage = TopPage(TopView.NODES)
    back: tuple[TopPage, ...] = ()
    shown: Shown | None = None
    totals: Row | None = None
    history: tuple[float | None, ...] = ()
    """Utilization of the fleet at each refresh."""
    overlay: Overlay | None = None
    why: str | None = None
    """Name whose diagnosis must be requested."""
    typing: str | None = None
    """The search text while it is typed."""
    problem: NoAnswer | None = None
    asked: Request | None = None
    """The request in flight."""
    asked_at_s: float = 0.0
    pace_s: float = 0.0
    """Interval of refreshes: longer than `every_s` if the source is slow."""
    next_at_s: float = 0.0
    """When the page is requested again."""
    is_paused: bool = False
    span_s: int = SPANS_S[1]
    """Span of graphs."""
    metric: str = GPU_METRICS[0]
    """Metric of the graphs of a node's GPUs."""
    is_tree: bool = False
    """Whether processes are shown as a tree."""
    toggled: frozenset[str] = frozenset()
    """Rows of the tree that are not as at first."""
    theme: str = "terminal"
    address: str | None = None
    """Address of the collector's pages; None: there are none."""

    @property
    def body_height(self) -> int:
        """Lines for rows."""
        return max(1, self.height - HEAD_LINES - FOOT_LINES)

    @property
    def request(self) -> Request:
        """The request for the page."""
        page = self.page
        bins = min(BINS, self.span_s // 2)
        if page.gpu is not None:
            return GpuRequest(page.gpu, bins, self.span_s)
        if page.graphs is not None:
            return NodeRequest(page.graphs, self.metric, bins, self.span_s)
        return RowsRequest(
            page.view, page.node, page.job, page.text, page.sort, page.is_descending, page.offset, self.body_height,
            self.has_tree, self.toggled if self.has_tree else frozenset(),
        )  # fmt: skip

    @property
    def has_tree(self) -> bool:
        """Whether the page is the tree of processes."""
        return self.is_tree and self.page.has_rows and self.page.view is TopView.PROCESSES

    @property
    def rows(self) -> RowsAnswer | None:
        """Rows of the page; None: not answered yet."""
        if self.shown is None or not isinstance(self.shown.answer, RowsAnswer):
            return None
        theirs, mine = self.shown.request, self.request
        if not isinstance(theirs, RowsRequest) or not isinstance(mine, RowsRequest):
            return None
        return self.shown.answer if _unplaced(theirs) == _unplaced(mine) else None

    @property
    def gpu(self) -> GpuAnswer | None:
        """The GPU of the page; None: not answered yet."""
        shown = self.shown
        if shown is None or not isinstance(shown.answer, GpuAnswer):
            return None
        is_mine = isinstance(shown.request, GpuRequest) and shown.request.gpu_uuid == self.page.gpu
        return shown.answer if is_mine else None

    @property
    def node(self) -> NodeAnswer | None:
        """The node of a page of graphs; None: not answered yet."""
        shown = self.shown
        if shown is None or not isinstance(shown.answer, NodeAnswer):
            return None
        is_mine = isinstance(shown.request, NodeRequest) and shown.request.node == self.page.graphs
        return shown.answer if is_mine else None

    @property
    def page_lines(self) -> Sequence[Line] | None:
        """All lines of a page without rows; None: not answered yet."""
        size = PageSize(self.width, self.body_height, self.span_s)
        if self.gpu is not None:
            return gpu_lines(self.gpu, size)
        if self.node is not None:
            return node_lines(self.node, self.metric, size)
        return None

    def row_at(self, place: int) -> Row | None:
        """The row at an index among all; None: not on this page."""
        if (rows := self.rows) is None or not isinstance(self.shown and self.shown.request, RowsRequest):  # fmt: skip
            return None
        assert self.shown is not None and isinstance(self.shown.request, RowsRequest)
        at = place - self.shown.request.offset
        return rows.rows[at] if 0 <= at < len(rows.rows) else None


@dataclass(frozen=True, slots=True)
class Pressed:
    """A key, by Textual's name for it; `character` where it has one."""

    key: str
    character: str | None = None


@dataclass(frozen=True, slots=True)
class Clicked:
    """A cell of the screen was clicked."""

    line: int
    cell: int = 0


@dataclass(frozen=True, slots=True)
class Resized:
    """The size of the screen changed."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class AnswerArrived:
    """A request was answered."""

    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """A request failed."""

    request: Request
    message: str
    is_refusal: bool = False


Event = Pressed | Clicked | Resized | Ticked | AnswerArrived | AnswerFailed


@dataclass(frozen=True, slots=True)
class AskSource:
    """Ask the source."""

    request: Request


@dataclass(frozen=True, slots=True)
class EndTop:
    """Quit."""


@dataclass(frozen=True, slots=True)
class OpenPage:
    """Open an address in a browser, if this host has one."""

    address: str


Effect = AskSource | EndTop | OpenPage


def step(state: State, event: Event, now_s: float) -> tuple[State, Sequence[Effect]]:
    """The state after an event, and the effects to run."""
    match event:
        case Pressed("ctrl+c") | Pressed("q") if state.typing is None or event.key == "ctrl+c":
            return state, [EndTop()]
        case Pressed("o") if state.typing is None and state.overlay is None:
            state, address = _showed_page(state)
            state, effects = _asking(state, now_s)
            return state, [*effects, *([OpenPage(address)] if address else [])]
        case Pressed():
            state = _pressed(state, event, now_s)
        case Clicked():
            state = _clicked(state, event, now_s)
        case Resized(width, height):
            state = _moved(replace(state, width=max(1, width), height=max(1, height)), 0)
        case AnswerArrived(request, answer):
            state = _answered(state, request, answer, now_s)
        case AnswerFailed():
            state = _failed(state, event, now_s)
        case Ticked():
            pass
    return _asking(state, now_s)


def wait_s(state: State, now_s: float) -> float | None:
    """Seconds until the next `Ticked`; None: nothing changes without an event."""
    if state.asked is not None:
        return SAID_EVERY_S  # the screen shows how long it has waited
    if state.is_paused and _is_current(state) and state.why is None:
        return None
    wait = max(0.0, state.next_at_s - now_s)
    return wait if state.problem is None else min(wait, SAID_EVERY_S)


def _asking(state: State, now_s: float) -> tuple[State, Sequence[Effect]]:
    if state.asked is not None:
        return state, []
    if state.why is not None and (state.problem is None or now_s >= state.next_at_s):
        wanted: Request = WhyRequest(state.why)
    elif now_s >= state.next_at_s and not (state.is_paused and _is_current(state)):
        wanted = state.request
    else:
        return state, []
    return replace(state, asked=wanted, asked_at_s=now_s), [AskSource(wanted)]


def _is_current(state: State) -> bool:
    """Whether the answer is for the page."""
    return state.shown is not None and state.shown.request == state.request


def _soon(state: State, now_s: float) -> State:
    """Request the page now, unless the source fails."""
    if state.problem is not None and not state.problem.is_refusal:
        return state
    return replace(state, next_at_s=now_s)


def _answered(state: State, request: Request, answer: Answer, now_s: float) -> State:
    state = replace(state, asked=None, problem=None)
    if isinstance(answer, WhyAnswer):
        if state.overlay is None or not isinstance(request, WhyRequest) or request.name != state.why:  # fmt: skip
            return replace(state, why=None)
        return replace(state, why=None, overlay=replace(state.overlay, lines=answer.lines))
    slow_s = min((now_s - state.asked_at_s) / BUSY_SHARE, PACE_MAX_S)
    pace_s = max(state.every_s, slow_s)
    state = replace(state, pace_s=pace_s, next_at_s=max(now_s, state.asked_at_s + pace_s))
    history = (*state.history, answer.totals.get("util_percent"))[-HISTORY_MAX:]
    state = replace(state, totals=answer.totals, history=history)
    if request != state.request:
        # The page has changed since the request: request it now.
        if _same_place(request, state.request):
            state = _settled(replace(state, shown=Shown(request, answer)))
        return replace(state, next_at_s=now_s)
    return _settled(replace(state, shown=Shown(request, answer)))


def _unplaced(request: RowsRequest) -> RowsRequest:
    """The request without what changes as one moves on its page."""
    return replace(request, offset=0, limit=0, toggled=frozenset())


def _same_place(one: Request, other: Request) -> bool:
    if isinstance(one, RowsRequest) and isinstance(other, RowsRequest):
        return _unplaced(one) == _unplaced(other)
    if isinstance(one, GpuRequest) and isinstance(other, GpuRequest):
        return one.gpu_uuid == other.gpu_uuid
    if isinstance(one, NodeRequest) and isinstance(other, NodeRequest):
        return (one.node, one.metric) == (other.node, other.metric)
    return False


def _settled(state: State) -> State:
    """The selection follows its row, else stays at its index, but not after the last row."""
    rows, page = state.rows, state.page
    if rows is None or state.shown is None or not isinstance(state.shown.request, RowsRequest):
        return state
    key = KEY[page.view]
    at = page.at
    for number, row in enumerate(rows.rows):
        if page.selected is not None and row.get(key) == page.selected:
            at = state.shown.request.offset + number
    at = max(0, min(at, rows.count - 1))
    offset = min(page.offset, max(0, rows.count - state.body_height))
    state = replace(state, page=replace(page, at=at, offset=offset))
    if offset != page.offset:
        state = replace(state, next_at_s=state.asked_at_s)
    return _selected(state)


def _selected(state: State) -> State:
    """Store the key of the selected row."""
    row = state.row_at(state.page.at)
    found = None if row is None else row.get(KEY[state.page.view])
    return replace(state, page=replace(state.page, selected=found))


def _failed(state: State, event: AnswerFailed, now_s: float) -> State:
    state = replace(state, asked=None)
    if isinstance(event.request, WhyRequest) and (event.is_refusal or state.overlay is None):
        overlay = state.overlay and replace(state.overlay, lines=[event.message])
        return replace(state, why=None, overlay=overlay)
    before = state.problem
    tries = 1 if before is None else before.tries + 1
    since_s = now_s if before is None else before.since_s
    wait = min(RETRY_MAX_S, state.every_s * 2 ** min(tries - 1, 6))
    return replace(
        state,
        problem=NoAnswer(event.message, since_s, tries, event.is_refusal),
        next_at_s=now_s + wait,
    )


def _pressed(state: State, event: Pressed, now_s: float) -> State:
    if state.typing is not None:
        return _typed(state, event, now_s)
    if state.overlay is not None:
        return _over(state, event)
    moves = {
        "down": 1, "j": 1, "up": -1, "k": -1, "pagedown": state.body_height, "pageup": -state.body_height,
        "home": -(10**9), "end": 10**9,
    }  # fmt: skip
    key = event.key
    if key in moves:
        before = state.page.offset
        state = _moved(state, moves[key])
        return state if state.page.offset == before else _soon(state, now_s)
    if key.isdigit() and 1 <= int(key) <= len(VIEWS):
        return _gone(state, TopPage(VIEWS[int(key) - 1]), now_s, is_new=True)
    if key in ("tab", "shift+tab"):
        by = 1 if key == "tab" else -1
        view = VIEWS[(VIEWS.index(state.page.view) + by) % len(VIEWS)]
        return _gone(state, TopPage(view), now_s, is_new=True)
    match key:
        case "enter":
            return _entered(state, now_s)
        case "escape" | "backspace":
            return _left(state, now_s)
        case "slash":
            return replace(state, typing=state.page.text) if state.page.has_rows else state
        case "g":
            return _opened_graphs(state, now_s)
        case "m":
            metric = _next(GPU_METRICS, state.metric)
            return _soon(replace(state, metric=metric), now_s) if state.page.graphs else state
        case "s":
            span_s = _next(SPANS_S, state.span_s)
            return state if state.page.has_rows else _soon(replace(state, span_s=span_s), now_s)
        case "right" | "left":
            return _sorted(state, 1 if key == "right" else -1, now_s)
        case "r":
            page = replace(state.page, is_descending=not state.page.is_descending, offset=0, at=0)
            return _soon(replace(state, page=page), now_s) if state.page.has_rows else state
        case "w":
            return _asked_why(state)
        case "t":
            return _turned_to_tree(state, now_s)
        case "space" if state.has_tree:
            return _toggled(state, now_s)
        case "c":
            return replace(state, theme=_next(tuple(THEMES), state.theme))
        case "p" | "space":
            return _soon(replace(state, is_paused=not state.is_paused), now_s)
        case "question_mark" | "h":
            return replace(state, overlay=Overlay("keys", HELP))
        case "plus" | "minus":
            every_s = state.every_s * (2 if key == "plus" else 0.5)
            return _soon(replace(state, every_s=min(60.0, max(1.0, every_s))), now_s)
    return state


HELP = (
    "up, down     move; page up, page down, home, end too",
    "enter        open: a node's GPUs, a GPU, a job's GPUs",
    "escape       back",
    "1 to 5, tab  nodes, GPUs, processes, jobs, alerts",
    "left, right  sort by the column before or behind",
    "r            reverse the order",
    "/            search names: nodes, users, jobs, models",
    "t            processes as a tree of jobs, and as a list",
    "space        in the tree: open or close; else pause",
    "g            graphs of the node: host and GPUs",
    "m            another metric of the GPUs' graphs",
    "s            another span of graphs: 1 min to 1 h",
    "o            page of the selected node, GPU, job or alert",
    "w            why the selected GPU, node or job is slow",
    "c            other colours",
    "p            pause, and continue",
    "+ -          refresh half or twice as often",
    "q, ctrl+z    quit; suspend (`fg` continues)",
    "mouse        title: sort; row: select, again: open; wheel",
    "",
    "idle: a kernel ran in less than 5 % of the time. throttled: heat or the power supply holds clocks down.",
    "not reporting, silent: no data for a minute.",
    "wasted: dollars an hour for GPUs that are idle, and what their alerts cost.",
    "–: unknown.",
)


def _moved(state: State, by: int) -> State:
    page, rows = state.page, state.rows
    if not page.has_rows:
        most = max(0, len(state.page_lines or ()) - state.body_height)
        return replace(state, page=replace(page, scrolled=max(0, min(page.scrolled + by, most))))
    count = rows.count if rows is not None else page.at + 1
    at = max(0, min(page.at + by, count - 1))
    height = state.body_height
    offset = min(page.offset, at) if at < page.offset + height else at - height + 1
    offset = max(0, min(offset, max(0, count - height)))
    return _selected(replace(state, page=replace(page, at=at, offset=offset)))


def _next(those: Sequence[T], this: T) -> T:
    return those[(those.index(this) + 1) % len(those)]


def _clicked(state: State, click: Clicked, now_s: float) -> State:
    """A tab opens its view, a title sorts, a row is selected and then opened, a graph of a GPU opens the GPU."""
    if state.overlay is not None:
        return replace(state, overlay=None, why=None)
    if click.line == TABS_LINE:
        view = tab_at(state.page.view, click.cell)
        return state if view is None else _gone(state, TopPage(view), now_s, is_new=True)
    number = click.line - HEAD_LINES
    if state.page.has_rows and click.line == TITLES_LINE:
        return _sorted_by(state, click.cell - ROWS_LEFT, now_s)
    if not 0 <= number < state.body_height:
        return state
    if not state.page.has_rows:
        return _clicked_graph(state, number + state.page.scrolled, click.cell, now_s)
    place = state.page.offset + number
    if state.row_at(place) is None:
        return state
    if place == state.page.at:
        return _entered(state, now_s)
    return _selected(replace(state, page=replace(state.page, at=place)))


def _clicked_graph(state: State, line: int, cell: int, now_s: float) -> State:
    if state.node is None:
        return state
    size = PageSize(state.width, state.body_height, state.span_s)
    graphs = graphs_of_node(state.node, state.metric, size)
    panel = panel_at(graphs.groups, graphs.grid, line - graphs.first, cell)
    if panel is None or panel.key is None:
        return state
    return _gone(state, TopPage(TopView.GPUS, gpu=panel.key), now_s)


def _turned_to_tree(state: State, now_s: float) -> State:
    """Processes as a tree, or as a list again."""
    page = state.page
    if not page.has_rows:
        return state
    is_tree = not state.has_tree
    state = replace(state, is_tree=is_tree)
    if page.view is not TopView.PROCESSES:
        return _gone(state, TopPage(TopView.PROCESSES, node=page.node, job=page.job), now_s)
    page = replace(page, offset=0, at=0, selected=None)
    return _soon(replace(state, page=page), now_s)


def _toggled(state: State, now_s: float) -> State:
    """Open or close the selected row of the tree."""
    row = state.row_at(state.page.at)
    if row is None or row.get("is_open") is None:
        return state
    toggled = state.toggled ^ {row["process"]}
    if len(toggled) > TOGGLED_MAX:
        return state
    return _soon(replace(state, toggled=toggled), now_s)


def _showed_page(state: State) -> tuple[State, str | None]:
    """The address of the page of what is shown or selected."""
    path = _path(state.page, state.row_at(state.page.at))
    if path is None:
        return state, None
    if state.address is None:
        return replace(state, overlay=Overlay("page", (NO_PAGES,))), None
    address = state.address + path
    return replace(state, overlay=Overlay("page", (address,))), address


def _path(page: TopPage, row: Row | None) -> str | None:
    if page.gpu is not None or page.graphs is not None:
        kind, name = ("gpus", page.gpu) if page.gpu is not None else ("nodes", page.graphs)
        return f"/{kind}/{quote(str(name), safe='')}"
    for key, kind in _PAGES[page.view]:
        if row is not None and row.get(key) is not None:
            return f"/{kind}/{quote(str(row[key]), safe='')}"
    return None


def _opened_graphs(state: State, now_s: float) -> State:
    """The graphs of the node of the selected row, or of the GPU that is shown."""
    row = state.gpu.row if state.gpu is not None else state.row_at(state.page.at)
    node = None if row is None else row.get("node")
    if node is None or state.page.graphs is not None:
        return state
    return _gone(state, TopPage(TopView.GPUS, graphs=str(node)), now_s)


def _gone(state: State, page: TopPage, now_s: float, *, is_new: bool = False) -> State:
    back = () if is_new else (*state.back, state.page)
    return _soon(replace(state, page=page, back=back), now_s)


def _left(state: State, now_s: float) -> State:
    if state.page.text and state.page.has_rows:
        return _soon(replace(state, page=replace(state.page, text="", offset=0, at=0)), now_s)
    if not state.back:
        return state
    *rest, last = state.back
    return _soon(replace(state, page=last, back=tuple(rest)), now_s)


def _entered(state: State, now_s: float) -> State:
    if state.page.graphs is not None:
        return _gone(state, TopPage(TopView.GPUS, node=state.page.graphs), now_s)
    row = state.row_at(state.page.at)
    if row is None or not state.page.has_rows:
        return state
    view = state.page.view
    if row.get("depth") == 0:
        return _toggled(state, now_s)
    if view is TopView.NODES:
        return _gone(state, TopPage(TopView.GPUS, node=row["node"]), now_s)
    if view is TopView.JOBS:
        return _gone(state, TopPage(TopView.GPUS, job=row["job"]), now_s)
    if row.get("gpu_uuid"):
        return _gone(state, TopPage(view, gpu=row["gpu_uuid"]), now_s)
    if row.get("node"):
        return _gone(state, TopPage(TopView.GPUS, node=row["node"]), now_s)
    return state


def _asked_why(state: State) -> State:
    row = state.row_at(state.page.at)
    name: str | None = state.page.gpu or state.page.graphs
    title = state.page.graphs or "this GPU"
    if name is None and row is not None:
        view = state.page.view
        name = row.get("job") if view is TopView.JOBS else row.get("gpu_uuid") or row.get("node")
        title = str(row.get("place") or row.get("job") or row.get("node"))
    elif state.gpu is not None and state.gpu.row is not None:
        title = str(state.gpu.row.get("place"))
    if name is None:
        return state
    return replace(state, why=name, overlay=Overlay(f"why {title}"))


def _over(state: State, event: Pressed) -> State:
    overlay = state.overlay
    assert overlay is not None
    by = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": 10, "pageup": -10}.get(event.key)
    if by is None:
        return replace(state, overlay=None, why=None)
    most = max(0, len(overlay.lines or ()) * 3)
    scrolled = max(0, min(overlay.scrolled + by, most))
    return replace(state, overlay=replace(overlay, scrolled=scrolled))


def _sorted(state: State, by: int, now_s: float) -> State:
    page = state.page
    if not page.has_rows:
        return state
    columns = TREE_COLUMNS if state.has_tree else COLUMNS[page.view]
    keys = ["", *(column.key for column in columns)]
    sort = keys[(keys.index(page.sort) + by) % len(keys)] if page.sort in keys else ""
    # Numbers sort from the largest.
    is_descending = any(c.key == sort and c.is_right for c in COLUMNS[page.view])
    page = replace(page, sort=sort, is_descending=is_descending, offset=0, at=0, selected=None)
    return _soon(replace(state, page=page), now_s)


def _sorted_by(state: State, cell: int, now_s: float) -> State:
    """Sort by the column whose title was clicked; the second time in reverse."""
    page = state.page
    sort = column_at(page.view, state.width - ROWS_LEFT, cell, is_tree=state.has_tree)
    if sort is None:
        return state
    is_right = any(c.key == sort and c.is_right for c in COLUMNS[page.view])
    is_descending = not page.is_descending if page.sort == sort else is_right
    page = replace(page, sort=sort, is_descending=is_descending, offset=0, at=0, selected=None)
    return _soon(replace(state, page=page), now_s)


def _typed(state: State, event: Pressed, now_s: float) -> State:
    """Edit the search text; the results show at once."""
    text = state.typing or ""
    match event.key:
        case "enter":
            return replace(state, typing=None)
        case "escape":
            text = ""
        case "backspace":
            text = text[:-1]
        case _ if event.character is not None and event.character.isprintable():
            text = (text + event.character)[:TEXT_MAX]
        case _:
            return state
    typing = None if event.key == "escape" else text
    page = replace(state.page, text=text, offset=0, at=0, selected=None)
    return _soon(replace(state, typing=typing, page=page), now_s)
