// The page of an incident or an alert: its charts, the rows of its rule, and its actions.

import { Annotations } from "./annotations.js";
import { Chart, Shared } from "./chart.js";
import { page, replace } from "./fresh.js";
import { facts, folded, make } from "./elements.js";
import { ask, live } from "./live.js";
import { plainTable, scrolling } from "./result.js";
import { acknowledge, end, mayChange, said, silence } from "./silencing.js";

const DAY = 86_400_000;
const AROUND = 15 * 60_000;

function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5)));
  if (typeof value === "object") return JSON.stringify(value);
  return String(value).replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z$/, "$1 $2");
}

/** The rows that the SQL returned, one line per column: when it fired, and now. */
function evidence(found) {
  const told = new Set([...Object.keys(found.alert.labels), "simulated", "model"]);
  const names = new Set(found.rows.flatMap((one) => Object.keys(one.row ?? {})).filter((name) => !told.has(name)));
  const table = plainTable(["the rule's SQL returned", ...found.rows.map((one) => `${one.when}, ${shown(one.at)}`)], []);
  const line = (name, cells) => table.tBodies[0].append(make("tr", {}, make("th", { scope: "row" }, name), cells));
  for (const name of names) {
    line(name.replace(/_/g, " "), found.rows.map((one) => make("td.text", {}, one.row ? shown(one.row[name]) : "")));
  }
  const empty = found.rows.map((one) => (one.row ? "" : (one.problem ?? "no row: the condition does not hold")));
  if (empty.some(Boolean)) line("", empty.map((text) => make("td", {}, text)));
  return scrolling("Evidence", table);
}

function thresholds(params) {
  return facts("dl.facts", Object.entries(params).map(([name, value]) => [`$${name}`, shown(value)]));
}

/** Charts of the metrics that the rule reads, around the time of the alert. */
async function draw(box, details, charts) {
  const { gpuUuid, node, severity } = details.dataset;
  const begin = Number(details.dataset.begin);
  const finish = Number(details.dataset.end) || Date.now();
  const around = Math.min(Math.max((finish - begin) / 3, AROUND), DAY);
  const ofHost = charts.filter((one) => one.metric.startsWith("host."));
  const ofGpu = charts.filter((one) => !one.metric.startsWith("host."));
  const groups = [[gpuUuid ? { gpu_uuid: gpuUuid } : { node }, gpuUuid || node ? ofGpu : []], [{ node }, node ? ofHost : []]];
  const shared = new Shared(begin - around, Math.min(Date.now(), finish + around));
  const drawn = groups.flatMap(([place, ones]) => ones.map((one) => {
    const figure = make("figure");
    box.append(figure);
    const title = one.metric.replace(/^host\./, "").replace(/_(percent|watts|celsius|bytes|mhz)$/, "").replace(/_/g, " ");
    return { ...one, place, chart: new Chart(figure, shared, title) };
  }));
  const annotations = new Annotations(shared, box, node ? { node } : {});
  async function look() {
    annotations.look();
    const clocks = ofGpu.some((one) => one.metric.endsWith("clock_mhz")) && gpuUuid;
    const span = { begin: Math.round(shared.begin), end: Math.round(shared.end), columns: Math.max(50, Math.min(1000, box.clientWidth - 60)) };
    const reasons = clocks ? (await ask(`/v1/timeline?${new URLSearchParams({ gpu_uuid: gpuUuid, ...span })}`)).strips : [];
    for (const [place, ones] of groups) {
      if (!ones.length) continue;
      const asked = new URLSearchParams({ ...place, ...span, metrics: ones.map((one) => one.metric).join(",") });
      const series = await ask(`/v1/series?${asked}`);
      for (const one of drawn.filter((each) => each.place === place)) {
        const lines = series.lines.filter((line) => line.metric === one.metric)
          .map((line) => ({ ...line, name: gpuUuid || line.gpu === null ? "" : `GPU ${line.gpu}` }));
        const limit = one.threshold === null ? null : {
          value: one.threshold,
          name: one.name ? one.name.replace(/_(percent|watts|celsius|bytes|mhz)$/, "").replace(/_/g, " ") : "idle below",
        };
        one.chart.set({ begin: series.begin_ms, step: series.step_ms, columns: series.columns, lines,
          marks: [{ kind: "alert", severity, begin_ms: begin, end_ms: Number(details.dataset.end) || null }],
          strips: one.metric.endsWith("clock_mhz") ? reasons : [],
          threshold: limit?.value ?? null, thresholdName: limit?.name ?? "" });
      }
    }
  }
  const failed = make("p.failed", { role: "status" });
  box.after(failed);
  const lookAgain = () => look().then(() => (failed.textContent = ""), (error) => (failed.textContent = `The charts show an older time: ${error.message}.`));
  shared.addEventListener("span", lookAgain);
  await look();
}

async function explain(details) {
  const why = details.querySelector(".why");
  if (!details.open || why.dataset.asked) return;
  why.dataset.asked = "yes";
  why.replaceChildren(make("p.soft", {}, "Asking the collector…"));
  try {
    const { fingerprint, activeAt } = details.dataset;
    const found = await ask(`/v1/alerts/${fingerprint}/explanation?active_at=${activeAt}`);
    const charts = make("div.charts");
    why.replaceChildren(charts);
    if (found.rows.length) why.append(evidence(found));
    else if (!found.sql) why.append(make("p.soft", {}, "The rule has no SQL or was deleted: there are no rows to show."));
    if (Object.keys(found.params).length) why.append(folded("thresholds and parameters", thresholds(found.params)));
    if (found.sql) why.append(folded("the rule's SQL", make("pre", { tabindex: 0 }, found.sql)));
    const { gpuUuid, node, begin } = details.dataset;
    if (node || gpuUuid) {
      const finish = Number(details.dataset.end) || Date.now();
      const href = `${gpuUuid ? `/gpus/${encodeURIComponent(gpuUuid)}` : `/nodes/${encodeURIComponent(node)}`}?begin=${Number(begin) - AROUND}&end=${Math.min(Date.now(), finish + AROUND)}`;
      why.append(make("a", { href }, "all charts of that time"));
    }
    await draw(charts, details, found.charts);
  } catch (error) {
    delete why.dataset.asked;
    why.append(make("p.failed", {}, error.message));
  }
}

for (const details of document.querySelectorAll("details[data-fingerprint]")) {
  details.addEventListener("toggle", () => explain(details));
  explain(details);
}

const again = live(5000, async () => {
  const found = await page();
  if (!found) return;
  document.title = found.title;
  replace(found, "now");
  replace(found, "timeline");
  mayChange();
  const known = new Set([...document.querySelectorAll("details[data-fingerprint]")].map((one) => one.id));
  for (const one of found.querySelectorAll("details[data-fingerprint]")) {
    const here = document.getElementById(one.id);
    if (here) {
      here.dataset.end = one.dataset.end;
      here.querySelector("summary").innerHTML = one.querySelector("summary").innerHTML;
    }
    known.delete(one.id);
    if (!here) document.querySelector("#timeline").previousElementSibling.before(one);
  }
});

function after(made) {
  const did = document.querySelector("#did");
  if (did) did.textContent = made ? said(made) : "ended";
  setTimeout(again, 300);
}

document.addEventListener("click", async (event) => {
  const actions = document.querySelector("#actions");
  if (event.target.id === "ack") {
    const fingerprints = actions.dataset.fingerprints.split(",");
    acknowledge(fingerprints, `${fingerprints.length === 1 ? "This alert notifies" : `These ${fingerprints.length} alerts notify`} nobody until then, also when firing again.`, after);
  } else if (event.target.id === "silence") silence(JSON.parse(actions.dataset.matchers), after);
  else if (event.target.dataset?.silence) {
    event.target.disabled = true;
    try {
      await end(event.target.dataset.silence);
      after(null);
    } catch (error) {
      event.target.disabled = false;
      document.querySelector("#did").textContent = error.message;
    }
  }
});
mayChange();
