// The page of a node, a GPU or a job: charts that share a cursor and a span, states, links, health, coverage.

import { Annotations } from "./annotations.js";
import { askBeside, showBeside } from "./beside.js";
import { Chart, Shared } from "./chart.js";
import { folded, make } from "./elements.js";
import { lineName, shortName } from "./lines.js";
import { ask, live } from "./live.js";
import { GPUS_MAX, LiveCharts } from "./livecharts.js";
import { Heat, Strips } from "./strips.js";
import { clock, setField, stamp, timeIn, zoneName } from "./times.js";
import { draw as drawTopology, fill, plain } from "./topology.js";

const WEEK = 7 * 86400e3;
const USUAL_MAX = 31 * 86400e3;
const SLOW_MS = 30e3;
const page = document.querySelector("#charts");
const set = page.dataset;
const uuids = set.gpuUuids ?? set.gpuUuid;
const place = uuids ? { gpu_uuid: uuids, ...(set.job ? { job: set.job } : {}) } : { node: set.node };
const isOne = Boolean(set.gpuUuid);
const gpuCount = set.gpuUuids ? uuids.split(",").length : Math.max(1, Number(set.gpus ?? 1));
const known = new Map(JSON.parse(document.querySelector("#metrics").textContent).map((metric) => [metric.name, metric]));
const siblings = JSON.parse(document.querySelector("#siblings")?.textContent ?? "{}");
const phases = JSON.parse(document.querySelector("#phases")?.textContent ?? "[]");
const charts = new Map();
const picker = document.querySelector("#picker");
const spans = document.querySelectorAll("[data-seconds]");
const said = document.querySelector("#span");
const happened = document.querySelector("#happened");
const compare = document.querySelector("#compare");
const heatPicker = document.querySelector("#heat-metric");
const bandBox = document.querySelector("#band");
const besides = ["#beside-of", "#beside-metric"].map((one) => document.querySelector(one));

const here = new URL(location.href);
const onlyGpu = here.searchParams.get("gpu");
const now = () => Date.now();
const given = ["begin", "end"].map((name) => Number(here.searchParams.get(name) ?? set[name]));
let lengthS = Number(here.searchParams.get("last")) || 3600;
const followed = set.follow && !here.searchParams.has("last") && !here.searchParams.has("begin");
if (followed) lengthS = Math.ceil((now() - Number(set.begin)) / 1000);
const fixed = !followed && given.every((ms) => ms > 0) && !here.searchParams.has("last");
const shared = new Shared(...(fixed ? given : [now() - lengthS * 1000, now()]));
let following = !fixed;
let liveCharts = null;
// What a job did whose end is past does not move.
const liveButton = set.job && !set.follow ? null : document.querySelector("#live");

function figure(selector, kind, title) {
  const element = document.querySelector(selector);
  return element && new kind(element, shared, title);
}
const about = set.job ? { job: set.job } : set.node ? { node: set.node, ...(set.gpu ? { gpu: Number(set.gpu) } : {}) } : {};
const annotations = new Annotations(shared, page, about);
const states = figure("#states", Strips, "States");
const coverage = figure("#coverage-strips", Strips, "Share of the samples that were due");
const heat = figure("#heat", Heat, "");
if (compare) compare.value = here.searchParams.get("compare") ?? "";
if (bandBox) bandBox.checked = here.searchParams.has("band");
if (besides[0]) besides[0].value = here.searchParams.get("beside") ?? "";
if (besides[1] && here.searchParams.has("by")) besides[1].value = here.searchParams.get("by");
if (heatPicker) heatPicker.value = here.searchParams.get("heat") ?? heatPicker.value;

function remember() {
  const url = new URL(location.href);
  const put = (name, value) => (value ? url.searchParams.set(name, value) : url.searchParams.delete(name));
  put("last", following ? lengthS : "");
  put("begin", following ? "" : shared.begin);
  put("end", following ? "" : shared.end);
  put("metrics", [...charts.values()].filter((one) => one.added).map((one) => one.metrics[0]).join(","));
  put("compare", compare?.value);
  put("band", bandBox?.checked ? "1" : "");
  put("beside", besides[0]?.value);
  if (besides[1]) put("by", besides[0].value && besides[1].selectedIndex ? besides[1].value : "");
  put("live", liveCharts ? "1" : "");
  if (heatPicker) put("heat", heatPicker.selectedIndex ? heatPicker.value : "");
  history.replaceState(null, "", url);
  for (const button of spans) button.setAttribute("aria-pressed", String(!liveCharts && following && Number(button.dataset.seconds) === lengthS));
  liveButton?.setAttribute("aria-pressed", String(Boolean(liveCharts)));
  for (const zone of document.querySelectorAll("#range .zone")) zone.textContent = zoneName(shared.begin);
  for (const name of ["begin", "end"]) {
    const input = document.querySelector(`#${name}`);
    if (input && document.activeElement !== input) setField(input, shared[name]);
  }
}

/** What the metrics of a chart mean, below it. */
function meanings(metrics) {
  const terms = metrics.flatMap((name) => [make("dt", {}, name), make("dd", {}, known.get(name)?.meaning ?? "")]);
  return folded("what it means", make("dl.columns", {}, terms));
}

function add(title, metrics, added = false) {
  const element = make("figure");
  page.append(element);
  charts.set(title, { metrics, added, chart: new Chart(element, shared, title) });
  const described = meanings(metrics);
  element.append(described);
  if (!added) return;
  described.open = true;
  const remove = () => {
    charts.get(title).chart.close();
    charts.delete(title);
    element.remove();
    remember();
    picker.focus();
  };
  element.append(make("button", { type: "button", "aria-label": `remove the chart ${title}`, click: remove }, "remove"));
}

for (const group of JSON.parse(document.querySelector("#groups").textContent)) add(group.title, group.metrics);
for (const name of (here.searchParams.get("metrics") ?? "").split(",").filter((one) => known.has(one))) add(name, [name], true);
picker.list.append(...[...known.values()].map((metric) => make("option", { value: metric.name, label: metric.meaning })));

function query(path, more) {
  const asked = new URLSearchParams({ ...place, begin: Math.round(shared.begin), end: Math.round(shared.end), ...more });
  return `${path}?${asked}`;
}

let reading = null;
let slowly = null; // what is asked beside the charts, which do not wait for it
let slowAt = 0;

const nameOf = (line, wanted) => lineName(line, wanted, { isOne, node: set.gpuUuids ? undefined : set.node });

function columnsOf(metrics) {
  const width = Math.min(1000, page.clientWidth - 60);
  return Math.max(50, Math.min(width, Math.floor(150000 / (metrics.length * gpuCount))));
}

async function look() {
  if (following) {
    shared.end = now();
    shared.begin = shared.end - lengthS * 1000;
  }
  reading?.abort();
  reading = new AbortController();
  const { signal } = reading;
  const metrics = [...new Set([...[...charts.values()].flatMap((one) => one.metrics), ...(heatPicker ? [heatPicker.value] : [])])];
  const columns = columnsOf(metrics);
  const asked = [
    ask(query("/v1/series", { metrics: metrics.join(","), columns }), signal),
    ask(query("/v1/timeline", { columns }), signal),
    beside(compared(metrics, columns, signal)),
    beside(banded(metrics, signal)),
    lookBeside(signal),
  ];
  if (!slowly && now() - slowAt > SLOW_MS) lookSlowly(columns);
  annotations.look();
  const [series, timeline, others, model] = await Promise.all(asked);
  show(series, timeline, others, model);
}

/** What is drawn beside the charts. If it cannot be read, they are shown without it, and `failed` says why. */
function beside(asked) {
  return asked.catch((error) => {
    if (error.name === "AbortError") throw error;
    return { failed: error.message, lines: [] };
  });
}

/** Bands are of whole minutes or hours: an answer is kept while the span begins and ends in the same minutes. */
const minutely = new Map();
async function askMinutely(path, more, signal) {
  const key = [...Object.values(more), ...[shared.begin, shared.end].map((ms) => Math.floor(ms / 60e3))].join(" ");
  if (minutely.get(path)?.key !== key) minutely.set(path, { key, answer: await ask(query(path, more), signal) });
  return minutely.get(path).answer;
}

/** How other GPUs of the model did, where that is asked for. */
async function banded(metrics, signal) {
  if (!bandBox?.checked) return null;
  const wanted = metrics.filter((name) => !name.includes("."));
  return wanted.length ? askMinutely("/v1/series/model", { metrics: wanted.join(","), columns: 120 }, signal) : null;
}

async function lookBeside(signal) {
  const element = document.querySelector("#beside");
  if (!element) return;
  const uuids = siblings[besides[0].value] ?? [];
  element.hidden = !uuids.length;
  if (!uuids.length) return;
  const all = [...new Set([set.gpuUuid, ...uuids])];
  const found = await beside(askBeside(all, besides[1].value, shared, signal));
  if (found.failed) fill(element, make("p.soft", {}, `Not shown: ${found.failed}`));
  else showBeside(element, found, set.gpuUuid, all.length);
}

/** Lines to compare with: the same time a week before, or other GPUs. */
async function compared(metrics, columns, signal) {
  const how = compare?.value;
  if (how === "week") {
    const [begin, end] = [shared.begin - WEEK, shared.end - WEEK].map(Math.round);
    return { how, ...(await ask(query("/v1/series", { metrics: metrics.join(","), columns, begin, end }), signal)) };
  }
  if (how === "own") {
    const wanted = metrics.filter((name) => !name.includes("."));
    if (!wanted.length || shared.end - shared.begin > USUAL_MAX) return { how, lines: [], begin_ms: 0, step_ms: 1 };
    return { how, ...(await askMinutely("/v1/usual", { metrics: wanted.join(",") }, signal)) };
  }
  const others = (siblings[how] ?? []).filter((uuid) => uuid !== set.gpuUuid);
  const wanted = metrics.filter((name) => !name.includes("."));
  if (!others.length || !wanted.length) return null;
  const asked = new URLSearchParams({ gpu_uuid: others.join(","), metrics: wanted.join(","), columns, begin: Math.round(shared.begin), end: Math.round(shared.end) });
  return { how, ...(await ask(`/v1/series?${asked}`, signal)) };
}

/** Least, mean and greatest of several lines, by column. */
export function band(lines) {
  const columns = lines[0].mean.length;
  const of = (name, choose) => Array.from({ length: columns }, (_, column) => {
    const there = lines.map((line) => line[name][column]).filter((value) => value !== null);
    return there.length ? choose(there) : null;
  });
  return {
    least: of("least", (values) => Math.min(...values)),
    mean: of("mean", (values) => values.reduce((a, b) => a + b, 0) / values.length),
    greatest: of("greatest", (values) => Math.max(...values)),
  };
}

function compareLines(others, wanted) {
  if (!others) return [];
  const mine = others.lines.filter((line) => wanted.includes(line.metric));
  if (!mine.length) return [];
  const step = others.step_ms;
  if (others.how === "own") {
    return mine.filter((line) => line.mean.some((value) => value !== null)).map((line) => ({ ...line, kind: "band", begin: others.begin_ms, step, name: `${wanted.length > 1 ? `${shortName(line.metric)} ` : ""}usual` }));
  }
  if (others.how === "week") {
    const begin = others.begin_ms + WEEK;
    // The mean of several lines: many dashed ones cannot be distinguished.
    if (mine.length > 2) return [{ ...band(mine), name: "mean a week before", kind: "dash", begin, step }];
    return mine.map((line) => ({ ...line, name: [nameOf(line, wanted), "a week before"].filter(Boolean).join(", "), kind: "dash", begin, step }));
  }
  const count = new Set(mine.map((line) => line.gpu_uuid)).size;
  return [...new Set(mine.map((line) => line.metric))].map((metric) => ({
    ...band(mine.filter((line) => line.metric === metric)), kind: "band", begin: others.begin_ms, step,
    name: `${wanted.length > 1 ? `${shortName(metric)} of ` : ""}${count} other${count > 1 ? "s" : ""}`,
  }));
}

/** The band of a chart with one metric: that of several would be drawn over each other. */
function bandLines(model, wanted) {
  const line = model?.lines.find((one) => one.metric === wanted[0]);
  if (!line) return [];
  return [{ ...line, name: `${wanted.length > 1 ? `${shortName(wanted[0])}, ` : ""}10 to 90 % of ${model.gpus} others of the model`, kind: "band", begin: model.begin_ms, step: model.step_ms }];
}

/** What the band of its own weeks is worth. */
function tellUsual(others) {
  const place = document.querySelector("#usual");
  if (!place) return;
  place.hidden = others?.how !== "own";
  if (place.hidden) return;
  const sum = (name) => others.lines.reduce((all, line) => all + line[name], 0).toLocaleString("en");
  const isKnown = others.lines.some((line) => line.judged);
  place.querySelector("span").hidden = !isKnown;
  place.querySelector("b").textContent = isKnown
    ? `${sum("outside")} of ${sum("judged")} hourly means here are outside of it.`
    : "There is no band here: it needs whole hours, two weeks before them, and a span of at most 31 days.";
}

function show(series, timeline, others, model) {
  tellUsual(others);
  const why = document.querySelector("#band-why");
  if (why) why.textContent = model?.failed ? `Not shown: ${model.failed}` : (model?.reason ?? "");
  const frame = { begin: series.begin_ms, step: series.step_ms, columns: series.columns };
  const marks = timeline.marks.filter((mark) => mark.kind !== "diagnosis" && mark.severity !== "info");
  const strips = timeline.strips.map((strip) => ({ ...strip, name: isOne || strip.gpu === null ? strip.name : `GPU ${strip.gpu}: ${strip.name}` }));
  const state = isOne && timeline.states.length === 1 ? [{ name: "state", runs: timeline.states[0].runs }] : [];
  for (const { metrics: wanted, chart } of charts.values()) {
    const lines = series.lines
      .filter((line) => wanted.includes(line.metric) && (onlyGpu === null || line.gpu === null || String(line.gpu) === onlyGpu))
      .map((line) => ({ ...line, name: nameOf(line, wanted) }));
    const isHost = /^(host|infiniband)\./.test(wanted[0]);
    chart.set({
      ...frame, lines, compare: [...bandLines(model, wanted), ...compareLines(others, wanted)],
      marks: isHost ? marks.filter((mark) => mark.gpu === null) : marks,
      strips: isHost ? [] : [...state, ...(isOne && wanted.some((name) => name.endsWith("clock_mhz")) ? strips : [])],
    });
  }
  states?.set({ ...frame, lines: stateRows(timeline, frame, strips) });
  if (heat) {
    heat.title = shortName(heatPicker.value);
    heat.meaning = known.get(heatPicker.value)?.meaning;
    heat.set({ ...frame, lines: series.lines.filter((line) => line.metric === heatPicker.value).map((line) => ({ ...line, name: nameOf(line, [""]) })) });
  }
  const spanMs = shared.end - shared.begin;
  if (!liveCharts) said.textContent = `${stamp(shared.begin)} to ${clock(shared.end, spanMs)} ${zoneName(shared.end)}, a reading each ${series.resolution_s === 1 ? "second" : series.resolution_s === 60 ? "minute" : "hour"}${others?.failed ? `. The comparison is not shown: ${others.failed}` : ""}`;
  tell(timeline.marks);
}

/** Runs that overlap, on as few rows as possible, at most six; the rest is counted. */
export function lanes(name, runs) {
  const rows = [];
  let beyond = 0;
  for (const run of [...runs].sort((a, b) => a.begin_ms - b.begin_ms)) {
    const row = rows.find((one) => (one.at(-1).end_ms ?? Infinity) <= run.begin_ms && run.begin_ms > one.at(-1).begin_ms);
    if (row) row.push(run);
    else if (rows.length < 6) rows.push([run]);
    else beyond += 1;
  }
  return rows.map((row, number) => ({ name: number === 5 && beyond ? `+ ${beyond} more` : number ? "" : name, runs: row }));
}

const REASONS = {
  "software power cap": "power", "hardware slowdown": "hardware", "software thermal slowdown": "SW heat",
  "hardware thermal slowdown": "HW heat", "hardware power brake": "brake",
};

function stateRows(timeline, { begin, step }, strips) {
  const at = (column) => begin + column * step;
  const run = ([first, count, label]) => ({ begin_ms: at(first), end_ms: at(first + count), label });
  const rows = phases.length ? [{ name: "phase", runs: phases.map((one) => ({ ...one, label: one.phase })) }] : [];
  const many = timeline.states.length > 16;
  for (const gpu of timeline.states) {
    const of = set.gpuUuids ? `${gpu.node} ${gpu.gpu}` : `GPU ${gpu.gpu}`;
    rows.push({ name: isOne ? "state" : [of, gpu.part].filter(Boolean).join(" "), runs: gpu.runs.map(run) });
    if (many || gpu.part) continue;
    const verdicts = timeline.marks.filter((mark) => mark.kind === "diagnosis" && mark.gpu === gpu.gpu && mark.node === gpu.node);
    if (verdicts.length) rows.push({ name: isOne ? "verdict" : "", runs: verdicts.map((mark) => ({ ...mark, severity: undefined, label: mark.name, verdict: true })) });
  }
  if (isOne) {
    for (const strip of strips) {
      const runs = [];
      for (const column of strip.held) {
        if (runs.length && runs.at(-1)[0] + runs.at(-1)[1] === column) runs.at(-1)[1] += 1;
        else runs.push([column, 1, "held"]);
      }
      rows.push({ name: REASONS[strip.name] ?? strip.name, runs: runs.map((one) => ({ ...run(one), short: strip.name, text: strip.name })) });
    }
  }
  const whose = (mark) => (isOne || mark.gpu === null ? "" : `GPU ${mark.gpu}: `);
  const of = (kind) => timeline.marks.filter((mark) => mark.kind === kind).map((mark) => ({ ...mark, label: mark.name, short: `${whose(mark)}${mark.name}`, text: `${whose(mark)}${mark.text ?? mark.name}` }));
  const events = of("event");
  const grave = events.filter((mark) => mark.severity !== "info");
  return [...rows, ...lanes("alerts", of("alert")), ...(grave.length || events.length ? [{ name: "events", runs: grave.length > 60 ? grave : events }] : [])];
}

/** Coverage, health and links: each is shown, or says in its place why it is not. */
async function lookSlowly(columns) {
  const mine = (slowly = new AbortController());
  const parts = [
    ["#coverage", query("/v1/coverage", { columns }), showCoverage],
    ["#health", query("/v1/health", {}), showHealth],
    ["#topology", `/v1/topology?${new URLSearchParams({ node: set.node, end: Math.round(shared.end) })}`, (found) => drawTopology(document.querySelector("#topology"), found, set.gpuUuid)],
  ];
  await Promise.all(parts.map(async ([place, path, draw]) => {
    const element = document.querySelector(place);
    if (!element) return;
    try {
      draw(await ask(path, mine.signal));
    } catch (error) {
      if (!mine.signal.aborted) fill(element, make("p.failed", {}, `Not shown: ${error.message}`));
    }
  }));
  if (mine.signal.aborted) return;
  slowAt = now();
  slowly = null;
}

/** Ask for it again, of the span that is shown now. */
function forgetSlow() {
  slowly?.abort();
  slowly = null;
  slowAt = 0;
}

function percent(share) {
  return `${(Math.floor(share * 1000) / 10).toFixed(1)} %`;
}

function showCoverage({ begin_ms: begin, step_ms: step, columns, tables }) {
  const lines = tables.map((one) => {
    const runs = [];
    one.share.forEach((share, column) => {
      const last = runs.at(-1);
      if (share === null) return;
      if (last && last.share === share && last.end_ms === begin + column * step) last.end_ms += step;
      else runs.push({ begin_ms: begin + column * step, end_ms: begin + (column + 1) * step, share, label: percent(share) });
    });
    return { name: one.table.replace(/_samples$/, "").replace(/_/g, " "), runs };
  });
  coverage.set({ begin, step, columns, lines });
  const rows = tables.map((one) => [
    one.table, one.expected ? percent(one.taken / one.expected) : "–", one.expected.toLocaleString("en"), one.taken.toLocaleString("en"),
    ...["missed", "skipped", "late", "failed"].map((name) => one[name].toLocaleString("en")), stamp(Math.max(one.since_ms, begin)),
  ]);
  fill(document.querySelector("#coverage"), plain("Coverage", ["table", "share", "expected", "taken", "missed", "skipped", "late", "failed", `counted since (${zoneName(begin)})`], rows));
}

function showHealth({ now: looks, changes, meanings: meaning }) {
  const names = [...new Set(looks.flatMap((look) => Object.keys(look.values)))];
  const rows = names.map((name) => [name.replace(/_total$/, "").replace(/_/g, " "), ...looks.map((look) => look.values[name] ?? "–"), meaning[name] ?? ""]);
  const found = looks.length ? [plain("Health now", ["at the end of the span", ...looks.map((look) => `GPU ${look.gpu}`), "meaning"], rows, rows[0]?.length - 1)] : [];
  const history = changes.map((change) => [
    stamp(change.at_ms), change.gpu === null ? "node" : `GPU ${change.gpu}`, change.name.replace(/_total$/, "").replace(/_/g, " "),
    change.text ?? `${change.before} → ${change.after}`, change.is_grave ? "grave" : "",
  ]);
  const nothing = make("p.soft", {}, looks.length ? "No counter of errors or repairs changed in this span, and there was no Xid." : "No health sample in this span.");
  fill(document.querySelector("#health"), history.length ? plain("Health history", [`time (${zoneName(shared.begin)})`, "of", "what", "how it changed", ""], history, 3) : nothing, ...found);
}

function tell(marks) {
  if (!happened) return;
  const rows = [...marks].reverse().slice(0, 60).map((mark) => {
    const cells = [stamp(mark.begin_ms), mark.kind, mark.gpu === null ? "" : `GPU ${mark.gpu}`, mark.severity];
    return make(`tr.${mark.severity}`, { pointerenter: () => shared.point(mark.begin_ms) },
      cells.map((text) => make("td", {}, text)), make("td.text", {}, mark.text ?? mark.name));
  });
  happened.tBodies[0].replaceChildren(...rows);
  happened.querySelector(".zone").textContent = zoneName(shared.begin);
  document.querySelector("#nothing").hidden = rows.length > 0;
}

const again = live(5000, async () => {
  if ((following && !liveCharts) || !reading) await look();
  else if (liveCharts) annotations.look();
});

/** Charts that move, in place of those of a span. Of many GPUs the first. */
function goLive() {
  const element = make("section.charts", { id: "live-charts", "aria-label": "Live" });
  page.before(element);
  for (const still of [page, document.querySelector("#states")]) still.hidden = true;
  const many = gpuCount > GPUS_MAX ? ` The first ${GPUS_MAX} of ${gpuCount} GPUs.` : "";
  liveCharts = new LiveCharts({
    element, nameOf, metrics: known,
    groups: JSON.parse(document.querySelector("#groups").textContent),
    place: uuids ? { ...place, gpu_uuid: uuids.split(",").slice(0, GPUS_MAX).join(",") } : place,
    report: (text) => (said.textContent = `${text}${many} What stands below is as of ${clock(shared.end, 1)}.`),
  });
  annotations.also(liveCharts.shared);
  liveCharts.shared.addEventListener("span", () => {
    [shared.begin, shared.end] = [liveCharts.shared.begin, liveCharts.shared.end];
    following = false;
    refresh();
  });
  remember();
  said.parentElement.scrollIntoView({ block: "start" });
}

function endLive() {
  liveCharts?.stop();
  annotations.also(null);
  liveCharts = null;
  document.querySelector("#live-charts")?.remove();
  for (const still of [page, document.querySelector("#states")]) still.hidden = false;
}

function refresh() {
  endLive();
  forgetSlow();
  remember();
  look().catch((error) => {
    if (error.name !== "AbortError") again();
  });
}

shared.addEventListener("span", () => {
  following = false;
  refresh();
});
for (const button of spans) {
  button.addEventListener("click", () => {
    following = true;
    lengthS = Number(button.dataset.seconds);
    refresh();
  });
}
document.querySelector("#range")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const [begin, end] = ["begin", "end"].map((name) => timeIn(document.querySelector(`#${name}`)));
  if (begin < end) shared.show(begin, end);
});
for (const choice of [compare, heatPicker, bandBox, ...besides]) choice?.addEventListener("change", refresh);
picker.addEventListener("input", () => {
  const metric = known.get(picker.value.trim());
  document.querySelector("#meaning").textContent = metric ? `${metric.meaning} (${metric.unit.replace(/_/g, " ")})` : "";
  listMetrics();
});
document.querySelector("#pick").addEventListener("submit", (event) => {
  event.preventDefault();
  pick(picker.value.trim());
  picker.value = "";
  document.querySelector("#meaning").textContent = "";
});

function pick(name) {
  if (!known.has(name)) return;
  if (!charts.has(name)) add(name, [name], true);
  refresh();
}

/** The metrics whose name or meaning contains the typed text. */
const catalogue = document.querySelector("#catalogue");
function listMetrics() {
  if (!catalogue.open) return;
  const wanted = picker.value.trim().toLowerCase();
  const rows = [...known.values()].filter((metric) => `${metric.name} ${metric.meaning}`.toLowerCase().includes(wanted)).map((metric) =>
    make("tr", {},
      make("td", {}, make("button.plain", { type: "button", click: () => pick(metric.name) }, metric.name)),
      make("td", {}, metric.unit.replace(/_/g, " ")),
      make("td.text", {}, metric.meaning)));
  catalogue.querySelector("tbody").replaceChildren(...rows);
}
catalogue.addEventListener("toggle", listMetrics);

/** Rules that cannot judge this GPU, each with what its source does not tell; asked for when somebody opens the list. */
const unable = document.querySelector("#unable");
async function listUnable() {
  if (!unable.open) return;
  const answer = await ask(`/v1/gpus/${encodeURIComponent(place.gpu_uuid)}/unable-rules`).catch((error) => ({ error: error.message }));
  const said = answer.error ?? (answer.unable.length
    ? `${answer.unable.length} of ${answer.rules} rules about GPUs: what they require had no value in the last hour.`
    : `None of ${answer.rules}.`);
  const rows = (answer.unable ?? []).map((one) => [one.rule, one.severity, one.missing.join(", ")]);
  unable.replaceChildren(unable.firstElementChild, make("p.soft", {}, said), ...(rows.length ? [plain("Rules that cannot judge this GPU", ["rule", "severity", "not read"], rows, 2)] : []));
}
unable?.addEventListener("toggle", listUnable);
addEventListener("zonechange", () => {
  forgetSlow();
  remember();
  if (!liveCharts) look().catch(() => again());
});
if (liveButton) {
  liveButton.hidden = false;
  liveButton.addEventListener("click", () => (liveCharts ? refresh() : goLive()));
}
if (liveButton && here.searchParams.has("live")) goLive();
else remember();
