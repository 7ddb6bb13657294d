// A dashboard: asks for the panels in view, follows the time, is edited and saved as a version, and shown on a wall.

import { Annotations } from "./annotations.js";
import { Shared } from "./chart.js";
import { make, put } from "./elements.js";
import { ask, change, live, mayEdit, requestJson } from "./live.js";
import { PanelView, usesRange } from "./panel.js";
import { editPanel } from "./panelform.js";
import { create, pathOf } from "./pin.js";
import { clock, setField, stamp, timeIn, zoneName } from "./times.js";

const TURN_MS = 2500;
const AGE_MS = 5e3;
const NEWEST_MS = 60e3;
const AT_ONCE = 3;
const ROWS_MAX = 5000;
const METRICS_MAX = 40;
const part = (id) => document.querySelector(`#${id}`);
const grid = part("board");
const outcome = part("outcome");
const kinds = grid.dataset.kinds.split(",");
const [columns, rows] = [grid.dataset.columns, grid.dataset.rows].map(Number);
const spans = document.querySelectorAll("[data-seconds]");
const here = new URL(location.href);

let wantedVersion = here.searchParams.get("version"); // null: the newest
let name = grid.dataset.name;
let board = null; // the answer of the collector
let draft = null; // the document that is edited; null: it is only shown
let isChanged = false;
let isSaving = false;
let isMissing = false; // there is no such dashboard
let views = [];

// --- the span

let lengthS = Number(here.searchParams.get("last")) || 3600;
const given = ["begin", "end"].map((key) => Number(here.searchParams.get(key)));
let following = !given.every((ms) => ms > 0) || here.searchParams.has("last");
const shared = new Shared(...(following ? [Date.now() - lengthS * 1000, Date.now()] : given));
const annotations = new Annotations(shared, grid);

function remember() {
  const url = new URL(location.href);
  const set = (key, value) => (value ? url.searchParams.set(key, value) : url.searchParams.delete(key));
  url.pathname = `/dashboards/${name}`;
  set("last", following ? lengthS : "");
  set("begin", following ? "" : shared.begin);
  set("end", following ? "" : shared.end);
  set("edit", "");
  set("wall", isWall ? "1" : "");
  set("version", wantedVersion);
  history.replaceState(null, "", url);
  for (const button of spans) button.setAttribute("aria-pressed", String(following && Number(button.dataset.seconds) === lengthS));
  part("range").querySelector(".zone").textContent = zoneName(shared.begin);
  for (const key of ["begin", "end"]) {
    if (document.activeElement !== part(key)) setField(part(key), shared[key]);
  }
}

// --- asking

const watching = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const view = views.find((one) => one.element === entry.target);
    if (view) view.isVisible = entry.isIntersecting;
  }
  if (entries.some((entry) => entry.isIntersecting)) again();
}, { rootMargin: "80px" });

/** Run jobs, a few at a time. */
async function inTurn(jobs) {
  const waiting = [...jobs];
  const worker = async () => {
    while (waiting.length) await waiting.shift()();
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

async function rowsOf(sql, begin, end) {
  const at = (ms) => ({ timestamp: new Date(ms).toISOString() });
  const values = { begin: at(begin), end: at(end) };
  const params = Object.fromEntries(Object.entries(values).filter(([key]) => new RegExp(`\\$${key}\\b`).test(sql)));
  const body = JSON.stringify({ sql, params, row_limit: ROWS_MAX });
  const { answer, said } = await requestJson("/v1/sql", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  if (!answer.ok) throw new Error([said.error, said.hint].filter(Boolean).join("; "));
  return said;
}

/** Requests that panels share: charts of one place, panels with the same SQL. */
function grouped(due) {
  const groups = [];
  for (const view of due) {
    const isChart = view.panel.kind === "chart";
    // One wrong metric must not stop the others of its place.
    const key = view.isRefused ? view : isChart ? JSON.stringify(view.wanted.place) : view.panel.sql;
    const metrics = isChart ? view.wanted.metrics : [];
    const group = groups.find((one) => one.isChart === isChart && one.key === key && new Set([...one.metrics, ...metrics]).size <= METRICS_MAX);
    if (group) {
      group.views.push(view);
      for (const metric of metrics) group.metrics.add(metric);
    } else groups.push({ isChart, key, metrics: new Set(metrics), views: [view] });
  }
  return groups;
}

async function fill(group, begin, end) {
  const { views: asked } = group;
  const there = () => asked.filter((view) => !view.isGone);
  for (const view of asked) view.askedAt = Date.now();
  try {
    if (group.isChart) {
      const wide = Math.max(...asked.map((view) => view.columns));
      const query = new URLSearchParams({ ...asked[0].wanted.place, metrics: [...group.metrics].join(","), begin: Math.round(begin), end: Math.round(end), columns: wide });
      const series = await ask(`/v1/series?${query}`);
      for (const view of there()) view.drawSeries(series);
    } else {
      const found = await rowsOf(asked[0].panel.sql, begin, end);
      for (const view of there()) view.drawRows(found);
    }
    for (const view of asked) [view.answeredAt, view.failedAt, view.isRefused] = [Date.now(), null, false];
  } catch (error) {
    const isRefused = group.isChart && error.status === 400;
    for (const view of asked) [view.failedAt, view.isRefused] = [Date.now(), isRefused];
    if (error instanceof TypeError) throw error;
    if (isRefused && asked.length > 1) await inTurn(grouped(there()).map((one) => () => fill(one, begin, end)));
    else for (const view of there()) view.failed(error.message);
  }
}

async function look() {
  if (isMissing) return;
  if (!board) await open();
  if (!board) return;
  const now = Date.now();
  if (following) [shared.begin, shared.end] = [now - lengthS * 1000, now];
  const spanMs = shared.end - shared.begin;
  const due = views.filter((view) => view.isDue(now, spanMs, following));
  let away = null;
  await inTurn(grouped(due).map((group) => () => fill(group, shared.begin, shared.end).catch((error) => {
    away = error;
  })));
  tellAges();
  if (away) throw away;
  if (due.length) {
    part("as-of").textContent = `as of ${clock(Date.now(), 1)} ${zoneName()}`;
    await annotations.look();
  }
}

function tellAges() {
  for (const view of views) view.tellAge(Date.now(), shared.end - shared.begin, following);
}

function invalidate() {
  for (const view of views) if (usesRange(view.panel)) view.askedAt = null;
  again();
}

// --- showing

function document_() {
  return draft ?? board.dashboard;
}

function show() {
  part("tools").hidden = false;
  for (const view of views) view.forget();
  watching.disconnect();
  const before = new Map(views.map((view) => [view.panel, view]));
  views = document_().panels.map((panel) => {
    const kept = before.get(panel);
    const view = kept?.chart || kept?.answeredAt ? kept : new PanelView(panel, shared);
    if (view.chart === null) view.askedAt = null;
    return view;
  });
  for (const view of before.values()) if (!views.includes(view)) view.close();
  if (views.length) grid.replaceChildren(...views.map((view) => view.element));
  else grid.replaceChildren(make("p.soft", {}, draft ? "No panel yet: add one, or pin charts of other pages." : "No panel yet."));
  for (const view of views) {
    watching.observe(view.element);
    tool(view);
  }
  part("title").textContent = document_().title;
  document.title = `${document_().title} · gpuwarden`;
  part("editing").hidden = part("keys").hidden = draft === null;
  part("edit").hidden = draft !== null || !mayEdit() || !board.version;
  again();
}

async function open() {
  const version = wantedVersion ? `?version=${encodeURIComponent(wantedVersion)}` : "";
  const of = name;
  try {
    const found = await ask(`${pathOf(of)}${version}`);
    if (of !== name) return; // the wall turned meanwhile
    board = found;
  } catch (error) {
    if (error.status !== 404) throw error;
    isMissing = true;
    const button = make("button", { type: "button", click: () => makeIt().catch(failed) }, "make it");
    grid.replaceChildren(make("p", {}, `${error.message}. `, make("a", { href: "/dashboards" }, "All dashboards"), " ", mayEdit() && !wantedVersion ? button : null));
    part("tools").hidden = true;
    return;
  }
  if (board.version !== board.newest) outcome.textContent = `This is version ${board.version}; the newest is ${board.newest}.`;
  if (here.searchParams.has("edit") && mayEdit()) begin();
  else show();
  remember();
  await showVersions();
}

async function makeIt() {
  location.href = `/dashboards/${await create({ title: name, panels: [] })}?edit=1`;
}

// --- editing

function failed(error) {
  outcome.className = "failed";
  outcome.textContent = error.problems ? error.problems.join("\n") : error.message;
}

function said(...content) {
  outcome.className = "";
  outcome.replaceChildren(...content);
}

function begin() {
  draft = structuredClone(board.dashboard);
  isChanged = false;
  part("name").value = draft.title;
  show();
}

function changed() {
  isChanged = true;
  show();
}

/** Do something to the panel of a view, and keep the focus on it. */
function act(view, how) {
  const { panels } = draft;
  const at = panels.indexOf(view.panel);
  const to = { earlier: at - 1, later: at + 1 }[how];
  const resize = (key, by, most) => {
    view.panel[key] = Math.min(most, Math.max(1, (view.panel[key] ?? { width: 6, height: 4 }[key]) + by));
    view.size();
    isChanged = true;
    view.chart?.draw();
  };
  if (to !== undefined) {
    if (to < 0 || to >= panels.length) return;
    panels.splice(to, 0, panels.splice(at, 1)[0]);
    isChanged = true;
    views.splice(to, 0, views.splice(at, 1)[0]);
    const target = grid.children[at < to ? to + 1 : to] ?? null;
    const focused = document.activeElement;
    grid.insertBefore(view.element, target);
    (view.element.contains(focused) ? focused : view.body).focus();
  } else if (how === "wider" || how === "narrower") resize("width", how === "wider" ? 1 : -1, columns);
  else if (how === "taller" || how === "shorter") resize("height", how === "taller" ? 1 : -1, rows);
  else if (how === "remove") {
    panels.splice(at, 1);
    changed();
    (views[Math.min(at, views.length - 1)]?.body ?? part("add")).focus();
  } else if (how === "change") {
    editPanel(view.panel, { kinds, columns, rows }, (made) => {
      panels[at] = made;
      changed();
      views[at].body.focus();
    });
  }
}

const TOOLS = [["earlier", "←"], ["later", "→"], ["narrower", "⇤"], ["wider", "⇥"], ["shorter", "⤒"], ["taller", "⤓"], ["change", "edit"], ["remove", "✕"]];

function tool(view) {
  view.tools.hidden = draft === null;
  view.tools.replaceChildren(...(draft === null ? [] : TOOLS.map(([how, sign]) =>
    make("button", { type: "button", "aria-label": `${how} ${view.panel.title}`, title: how, click: () => act(view, how) }, sign))));
}

grid.addEventListener("keydown", (event) => {
  const view = views.find((one) => one.body === event.target);
  if (!draft || !view || event.ctrlKey || event.metaKey || event.altKey) return;
  const plain = { ArrowLeft: "earlier", ArrowUp: "earlier", ArrowRight: "later", ArrowDown: "later", Enter: "change", Delete: "remove" };
  const shifted = { ArrowLeft: "narrower", ArrowRight: "wider", ArrowUp: "shorter", ArrowDown: "taller" };
  const how = (event.shiftKey ? shifted : plain)[event.key];
  if (!how) return;
  event.preventDefault();
  act(view, how);
});

/** While it is saved nothing can be edited: what is shown after is what was sent. */
function setSaving(value) {
  isSaving = value;
  for (const one of [part("editing"), grid]) one.inert = value;
}

/** Save the draft as the version after `changes`. */
async function save(changes) {
  if (isSaving || !draft) return;
  draft.title = part("name").value.trim();
  const sent = structuredClone(draft);
  setSaving(true);
  said("Saving …");
  try {
    const saved = await change("PUT", `${pathOf(name)}?version=${changes}`, sent);
    board = { ...saved, newest: saved.version, dashboard: sent };
    [draft, isChanged, wantedVersion] = [null, false, null];
    said(`Saved as version ${saved.version}.`);
    setSaving(false); // not after the list of versions, which may be long in coming
    show();
    remember();
    await showVersions();
  } catch (error) {
    failed(error);
    if (error.status !== 409 || error.newest === undefined) return;
    outcome.append(" ", make("button", { type: "button", click: () => theirs().catch(failed) }, "discard mine and show theirs"), " ",
      make("button", { type: "button", click: () => save(error.newest) }, "save mine after theirs"));
  } finally {
    setSaving(false);
    if (draft && document.activeElement === document.body) part("save").focus();
  }
}

async function theirs() {
  [draft, isChanged, board, wantedVersion] = [null, false, null, null];
  said();
  await open();
}

async function showVersions() {
  const of = name;
  const { versions } = await ask(`${pathOf(of)}/versions`);
  if (of !== name) return;
  part("versions").hidden = versions.length < 2;
  put(part("versions").querySelector("ul"), versions.map((one) => {
    const by = [`version ${one.version}`, one.deleted ? "deleted" : `${one.panels} panels`, one.author, `${stamp(Date.parse(one.saved_at))} ${zoneName(Date.parse(one.saved_at))}`].filter(Boolean).join(", ");
    const isOld = one.version !== board.newest && !one.deleted;
    return make("li", {}, isOld ? make("a", { href: `?version=${one.version}` }, by) : by, " ",
      isOld && mayEdit() ? make("button.plain", { type: "button", "aria-label": `restore version ${one.version}`, click: () => restore(one.version).catch(failed) }, "restore") : null);
  }));
}

async function restore(version) {
  // A wall may turn to another one meanwhile.
  const [of, changes] = [name, board.newest];
  const { dashboard } = await ask(`${pathOf(of)}?version=${version}`);
  await change("PUT", `${pathOf(of)}?version=${changes}`, dashboard);
  location.href = `/dashboards/${of}`;
}

part("edit").addEventListener("click", begin);
part("save").addEventListener("click", () => part("name").reportValidity() && save(board.newest));
part("discard").addEventListener("click", () => {
  [draft, isChanged] = [null, false];
  said();
  show();
});
part("add").addEventListener("click", () => editPanel({ kind: "line" }, { kinds, columns, rows }, (made) => {
  draft.panels.push(made);
  changed();
  views.at(-1).element.scrollIntoView({ block: "nearest" });
  views.at(-1).body.focus();
}));
part("name").addEventListener("input", () => {
  isChanged = true;
});
part("delete").addEventListener("click", () => {
  const sure = async () => {
    await change("DELETE", `${pathOf(name)}?version=${board.newest}`);
    isChanged = false;
    location.href = "/dashboards";
  };
  said("It can be restored for 30 days. ", make("button", { type: "button", click: () => sure().catch(failed) }, "delete it now"));
});
addEventListener("beforeunload", (event) => {
  if (isChanged) event.preventDefault();
});
part("export").addEventListener("click", () => {
  const file = new Blob([JSON.stringify(document_(), null, 2), "\n"], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(file), download: `${name}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
});

// --- the wall

let isWall = here.searchParams.get("wall") === "1";
const turnS = Number(/^(\d{1,4})s?$/.exec(here.searchParams.get("rotate") ?? "")?.[1] ?? 0);

function hang() {
  document.documentElement.classList.toggle("wall", isWall);
  for (const view of views) view.chart?.draw();
}

let isTurning = false;

/** Show the dashboard whose name `choose` gives, as others saved it last. */
async function turn(choose) {
  const isOff = () => !isWall || document.hidden || draft;
  if (isOff() || isTurning) return;
  isTurning = true;
  try {
    const next = await choose();
    const found = await ask(pathOf(next));
    if (isOff() || (next === name && found.version === board?.version)) return;
    part("versions").hidden = true;
    [name, board, wantedVersion, isMissing] = [next, found, null, false];
    said();
    show();
    remember();
    await showVersions();
  } finally {
    isTurning = false;
  }
}

async function nextName() {
  const { dashboards } = await ask("/v1/dashboards");
  const chosen = here.searchParams.get("names")?.split(",");
  const names = chosen?.filter((one) => dashboards.some((each) => each.name === one)) ?? dashboards.map((one) => one.name);
  return names[(names.indexOf(name) + 1) % names.length] ?? name;
}

part("wall").addEventListener("click", () => {
  isWall = true;
  // Browsers allow the whole screen after a click alone; without it the wall fills the window.
  document.documentElement.requestFullscreen?.().catch(() => {});
  hang();
  remember();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !isWall) return;
  isWall = false;
  hang();
  remember();
});
document.addEventListener("fullscreenchange", () => {
  if (document.fullscreenElement || !isWall) return;
  isWall = false;
  hang();
  remember();
});
hang();

shared.addEventListener("span", () => {
  following = false;
  remember();
  invalidate();
});
for (const button of spans) {
  button.addEventListener("click", () => {
    following = true;
    lengthS = Number(button.dataset.seconds);
    [shared.begin, shared.end] = [Date.now() - lengthS * 1000, Date.now()];
    remember();
    invalidate();
  });
}
part("range").addEventListener("submit", (event) => {
  event.preventDefault();
  const [from, to] = ["begin", "end"].map((key) => timeIn(part(key)));
  if (from < to) shared.show(from, to);
});
addEventListener("zonechange", () => {
  remember();
  if (board) showVersions().catch(failed);
});
const again = live(TURN_MS, look);
// Also while an answer does not come.
setInterval(tellAges, AGE_MS);
// A turn that fails is tried again at the next; the panels say when they are old.
if (turnS >= 5) setInterval(() => turn(nextName).catch(() => {}), turnS * 1000);
else if (!wantedVersion) setInterval(() => turn(() => name).catch(() => {}), NEWEST_MS);
