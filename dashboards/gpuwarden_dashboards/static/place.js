// The page of a node or a GPU: charts that share a cursor and a span, and what happened.

import { Chart, Shared, clock } from "./chart.js";
import { ask, live } from "./live.js";

const page = document.querySelector("#charts");
const uuids = page.dataset.gpuUuids ?? page.dataset.gpuUuid;
const place = uuids ? { gpu_uuid: uuids } : { node: page.dataset.node };
const isOne = Boolean(page.dataset.gpuUuid);
const known = JSON.parse(document.querySelector("#metrics").textContent);
const charts = new Map();
const picker = document.querySelector("#picker");
const spans = document.querySelectorAll("[data-seconds]");
const said = document.querySelector("#span");
const happened = document.querySelector("#happened");

const here = new URL(location.href);
const onlyGpu = here.searchParams.get("gpu");
const now = () => Date.now();
const given = ["begin", "end"].map((name) => Number(here.searchParams.get(name) ?? page.dataset[name]));
let lengthS = Number(here.searchParams.get("last")) || 3600;
const fixed = given.every((ms) => ms > 0) && !here.searchParams.has("last");
const shared = new Shared(...(fixed ? given : [now() - lengthS * 1000, now()]));
let following = !fixed;

function remember() {
  const url = new URL(location.href);
  for (const name of ["begin", "end", "last"]) url.searchParams.delete(name);
  if (following) url.searchParams.set("last", lengthS);
  else {
    url.searchParams.set("begin", shared.begin);
    url.searchParams.set("end", shared.end);
  }
  const extra = [...charts.values()].filter((one) => one.added).map((one) => one.metrics[0]);
  if (extra.length) url.searchParams.set("metrics", extra.join(","));
  else url.searchParams.delete("metrics");
  history.replaceState(null, "", url);
  for (const button of spans) button.setAttribute("aria-pressed", String(following && Number(button.dataset.seconds) === lengthS));
}

function add(title, metrics, added = false) {
  const element = document.createElement("figure");
  page.append(element);
  charts.set(title, { metrics, added, chart: new Chart(element, shared, title) });
}

for (const group of JSON.parse(document.querySelector("#groups").textContent)) add(group.title, group.metrics);
for (const name of (here.searchParams.get("metrics") ?? "").split(",").filter((one) => known.some((m) => m.name === one))) add(name, [name], true);
for (const metric of known) {
  const option = document.createElement("option");
  option.value = metric.name;
  option.label = metric.meaning;
  picker.list.append(option);
}

function query(path, more) {
  const asked = new URLSearchParams({ ...place, begin: Math.round(shared.begin), end: Math.round(shared.end), ...more });
  return `${path}?${asked}`;
}

let reading = null;

async function look() {
  if (following) {
    shared.end = now();
    shared.begin = shared.end - lengthS * 1000;
  }
  reading?.abort();
  reading = new AbortController();
  const { signal } = reading;
  const width = Math.max(50, Math.min(1000, page.clientWidth - 60));
  const metrics = [...new Set([...charts.values()].flatMap((one) => one.metrics))];
  const [series, timeline] = await Promise.all([
    ask(query("/v1/series", { metrics: metrics.join(","), columns: width }), signal),
    ask(query("/v1/timeline", { columns: width }), signal),
  ]);
  const marks = timeline.marks.filter((mark) => mark.kind !== "diagnosis" && mark.severity !== "info");
  const strips = timeline.strips.map((strip) => ({ name: strip.gpu === null || isOne ? strip.name : `GPU ${strip.gpu}: ${strip.name}`, held: strip.held }));
  for (const { metrics: wanted, chart } of charts.values()) {
    const lines = series.lines
      .filter((line) => wanted.includes(line.metric) && (onlyGpu === null || line.gpu === null || String(line.gpu) === onlyGpu))
      .map((line) => ({
        ...line,
        name: isOne || line.gpu === null ? (wanted.length > 1 ? line.metric.replace(/^host\./, "").replace(/_(percent|watts|celsius|bytes|mhz|bytes_total|bytes_per_second)$/, "").replace(/_/g, " ") : "") : page.dataset.node ? `GPU ${line.gpu}` : `${line.node} ${line.gpu}`,
      }));
    chart.set({
      begin: series.begin_ms, step: series.step_ms, columns: series.columns, lines,
      marks: wanted[0].startsWith("host.") ? marks.filter((mark) => mark.gpu === null) : marks,
      strips: wanted.some((name) => name.endsWith("clock_mhz")) ? strips : [],
    });
  }
  const spanMs = shared.end - shared.begin;
  said.textContent = `${new Date(shared.begin).toISOString().slice(0, 10)} ${clock(shared.begin, 1)} to ${clock(shared.end, spanMs)} UTC, a reading each ${series.resolution_s === 1 ? "second" : series.resolution_s === 60 ? "minute" : "hour"}`;
  tell(timeline.marks);
}

function tell(marks) {
  if (!happened) return;
  const rows = [...marks].reverse().slice(0, 60).map((mark) => {
    const row = document.createElement("tr");
    const cells = [
      new Date(mark.begin_ms).toISOString().slice(0, 19).replace("T", " "),
      mark.kind,
      mark.gpu === null ? "" : `GPU ${mark.gpu}`,
      mark.severity,
      mark.text ?? mark.name,
    ];
    for (const text of cells) row.insertCell().textContent = text;
    row.lastElementChild.className = "text";
    row.classList.add(mark.severity);
    row.addEventListener("pointerenter", () => shared.point(mark.begin_ms));
    return row;
  });
  happened.tBodies[0].replaceChildren(...rows);
  document.querySelector("#nothing").hidden = rows.length > 0;
}

const again = live(5000, async () => {
  if (following || !reading) await look();
});

function refresh() {
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
document.querySelector("#pick").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = picker.value.trim();
  if (!known.some((metric) => metric.name === name)) return;
  if (!charts.has(name)) add(name, [name], true);
  picker.value = "";
  refresh();
});
remember();
