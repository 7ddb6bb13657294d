// The page of the fleet: what is wrong, what it costs, the map of every GPU, and the worst nodes, kept up to date.

import { reading } from "./chart.js";
import { counted, duration, make, put, usd } from "./elements.js";
import { Fleet } from "./fleetdata.js";
import { linkTo, nodesInWords, showNodes, showTotals, showTrouble, showVerdict, showWaste } from "./fleetlists.js";
import { FleetMap, HEAD, blocks, colourOf } from "./fleetmap.js";
import { exactly, matching, parse } from "./fleetquery.js";
import { ask, askNew, live } from "./live.js";
import { Search } from "./search.js";
import { sparkline } from "./sparkline.js";
import { stamp, zoneName } from "./times.js";

const NODES_STEP = 25;
const NODES_MAX = 100;
const BESIDE_GPUS_MAX = 256; // the map of a larger fleet has the page's width
const $ = (id) => document.getElementById(id);
const terms = JSON.parse($("terms").textContent);
const version = document.querySelector("meta[name=version]").content;
const [colour, group, filter] = ["colour", "group", "filter"].map($);
const fleet = new Fleet(terms.states, terms.levels);
const ENDS = {
  util_percent: () => [0, 100],
  sm_active_percent: () => [0, 100],
  memory_percent: () => [0, 100],
  temperature_margin_celsius: () => [50, 0],
  power_watts: (most) => [0, Math.max(100, Math.ceil(most / 50) * 50)],
  usd_wasted_per_hour: (most) => [0, Math.max(1, most)],
  state: () => [0, 1],
};
const ofState = terms.states.map((name) => `--state-${name.replace(" ", "-")}`);

const here = new URL(location.href).searchParams;
if (terms.colours[here.get("colour")]) colour.value = here.get("colour");
filter.value = here.get("filter") ?? "";
let grouping = here.get("group") ?? "";

let listed = NODES_STEP;
let offsetMs = 0;
let totals = null;
let unjudged = null;
let week = null;
let past = new Map();
let details = new Map();
let shown = { mask: null, groups: [], nodes: [], hosts: [] };

const serverNow = () => Date.now() + offsetMs;

/** The reading of a GPU as text: short for a cell, or complete. */
function inWords(gpu, isLong) {
  const [unit] = terms.colours[fleet.colour];
  const value = fleet.values[gpu];
  const state = fleet.states[gpu] & 15;
  if (!isLong) return unit === "state" ? terms.states[state].slice(0, 4) : Number.isNaN(value) ? "–" : unit === "usd" ? value.toFixed(1) : String(Math.round(value));
  const said = unit === "state" ? null : `${colour.selectedOptions[0].text} ${Number.isNaN(value) ? "unknown" : unit === "usd" ? `${usd(value)}/h` : reading(value, unit)}`;
  const since = fleet.silentSince.get(gpu);
  const level = terms.levels[fleet.level(gpu)];
  return [
    `${fleet.name("node", gpu)} GPU ${fleet.gpuOf[gpu]}`,
    fleet.name("model", gpu),
    fleet.isSilent(gpu) ? `not reporting${since ? ` for ${duration(serverNow() - since)}` : ""}` : terms.states[state],
    fleet.isSilent(gpu) ? null : said,
    level === "none" ? null : `${level} alert`,
    fleet.name("username", gpu) && `user ${fleet.name("username", gpu)}`,
    fleet.name("job", gpu) && `job ${fleet.name("job", gpu)}`,
    ...fleet.labelKeys.map((key) => fleet.name(key, gpu) && `${key} ${fleet.name(key, gpu)}`),
  ].filter(Boolean).join(", ");
}

const map = new FleetMap($("map"), {
  describe: (gpu) => inWords(gpu, true),
  nameOf: (gpu) => fleet.name("node", gpu),
  onPick: (gpu, isName, event) => {
    const href = linkTo("node", fleet.name("node", gpu)) + (isName ? "" : `?gpu=${fleet.gpuOf[gpu]}`);
    if (event.ctrlKey || event.metaKey) open(href, "_blank", "noopener");
    else location.href = href;
  },
});

function remember() {
  const url = new URL(location.href);
  for (const [name, value, usual] of [["colour", colour.value, "util_percent"], ["group", grouping, ""], ["filter", filter.value.trim(), ""]]) {
    if (value === usual) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(null, "", url);
}

function narrow(text) {
  filter.value = filter.value.trim().split(/\s+/).includes(text) ? filter.value : `${filter.value} ${text}`.trim();
  chooseView();
}

/** Draw all that depends on data, filter or grouping. */
function show() {
  if (!fleet.nodes || fleet.colour === undefined) return;
  $("fleet").hidden = fleet.size === 0;
  $("first").classList.toggle("wide", fleet.size > BESIDE_GPUS_MAX || fleet.size === 0);
  const wanted = parse(filter.value);
  const { mask, unknown } = wanted.length ? matching(fleet, wanted) : { mask: null, unknown: [] };
  const groups = fleet.grouped(grouping && (grouping === "state" || fleet.has(grouping)) ? grouping : "", mask);
  const isByNode = grouping === "" || fleet.labelKeys.includes(grouping);
  const per = isByNode ? fleet.most : 1;
  let most = 0;
  for (const value of fleet.values) if (value > most) most = value;
  const [low, high] = ENDS[fleet.colour](most);
  const share = fleet.values.map((value) => (value - low) / (high - low));
  const head = grouping ? HEAD : 0;
  map.set({
    groups: groups.map((one) => ({ ...one, cells: blocks(one.cells, fleet.nodeOf, per) })),
    per, head, share, states: fleet.states,
    silent: terms.states.indexOf("not reporting"),
    levels: (gpu) => fleet.level(gpu),
    colours: fleet.unit === "state" ? ofState : null,
    text: (gpu) => (fleet.isSilent(gpu) ? "" : inWords(gpu, false)),
  });
  if (!performance.getEntriesByName("drawn").length) performance.mark("drawn");
  showHeads(groups, head);
  showLegend(low, high, mask);
  const cells = groups.reduce((sum, one) => sum + one.cells.length, 0);
  const silent = [...fleet.silentSince.keys()].filter((gpu) => !mask || mask[gpu]).length;
  $("counted").textContent = unknown.length ? `no GPU has ${unknown.join(", ")}` : `${(cells - silent).toLocaleString("en")} of ${counted(cells, "GPU")} reporting`;
  $("controls").hidden = fleet.size === 1 && !filter.value;
  $("clear").hidden = !filter.value;
  shown = { mask, groups, nodes: fleet.worstNodes(mask), hosts: mask ? [] : fleet.hosts };
  const isFirst = details.size === 0;
  showList();
  if (isFirst) nodesAgain();
}

function showHeads(groups, head) {
  const lines = past.get(grouping)?.groups;
  put($("heads"), !head ? [] : groups.map((one, number) => {
    const silent = one.cells.filter((gpu) => fleet.isSilent(gpu)).length;
    const name = one.name === null ? `${counted(one.count, "smaller group")}` : one.name || (grouping === "username" || grouping === "job" ? "nobody known" : `no ${grouping}`);
    const facts = [`${counted(one.cells.length, "GPU")}${silent && fleet.unit !== "state" ? `, ${silent.toLocaleString("en")} not reporting` : ""}`, meanOf(one.cells)].filter(Boolean).join(" · ");
    const href = one.name && linkTo(grouping, one.name);
    const line = lines?.[one.name ?? " "]?.util_percent;
    const element = make("div.head", {},
      one.name === null ? make("b", {}, name) : make("button.plain", { type: "button", "data-key": `group ${one.name}`, "data-filter": exactly(grouping, one.name), title: "show only these" }, name),
      href ? make("a", { href, "data-key": href }, "open") : null,
      make("span.soft", {}, facts),
      line?.some((value) => value !== null) ? sparkline(line, { greatest: 100, label: `utilization of ${name} over the last hours` }) : null);
    element.style.setProperty("top", `${map.plan.tops[number] - HEAD}px`);
    return element;
  }));
}

function meanOf(cells) {
  if (fleet.unit === "state") {
    const counts = new Array(terms.states.length).fill(0);
    for (const gpu of cells) counts[fleet.states[gpu] & 15] += 1;
    return counts.map((count, state) => (count ? `${count.toLocaleString("en")} ${terms.states[state]}` : null)).filter(Boolean).join(", ");
  }
  let sum = 0;
  let known = 0;
  for (const gpu of cells) {
    const value = fleet.values[gpu];
    if (!Number.isNaN(value)) {
      sum += value;
      known += 1;
    }
  }
  if (!known) return "no readings";
  return fleet.unit === "usd" ? `${usd(sum)}/h wasted` : fleet.unit === "watts" ? reading(sum, "watts") : `mean ${reading(sum / known, fleet.unit)}`;
}

/** The scale, or the states with their counts, which filter. */
function showLegend(low, high, mask) {
  const counts = new Map();
  const levels = new Set();
  fleet.states.forEach((state, gpu) => {
    if (mask && !mask[gpu]) return;
    counts.set(state & 15, (counts.get(state & 15) ?? 0) + 1);
    levels.add(state >> 4);
  });
  const unit = fleet.unit;
  const end = (value) => (unit === "usd" ? `${usd(value)}/h` : reading(value, unit));
  const silent = terms.states.indexOf("not reporting");
  const states = terms.states
    .map((name, state) => ({ name, state, count: counts.get(state) ?? 0 }))
    .filter(({ state, count }) => count && (unit === "state" || state === silent))
    .map(({ name, count }) => make("button.plain", { type: "button", "data-key": name, "data-filter": exactly("state", name) }, make(`span.swatch.s-${name.replace(" ", "-")}`), `${name} ${count.toLocaleString("en")}`));
  const hasGaps = unit !== "state" && fleet.values.some((value, gpu) => Number.isNaN(value) && !fleet.isSilent(gpu));
  put($("legend"),
    unit === "state" ? null : [make("span", {}, end(low)), $("scale"), make("span", {}, end(high))],
    hasGaps ? make("span", {}, make("span.swatch.s-unknown"), "no reading") : null,
    states,
    levels.has(2) ? make("button.plain", { type: "button", "data-key": "warning", "data-filter": "state=warning" }, make("span.swatch.warning"), "warning") : null,
    levels.has(3) ? make("button.plain", { type: "button", "data-key": "critical", "data-filter": "state=critical" }, make("span.swatch.critical"), "critical") : null);
}

/** Names of the nodes that the list has: with GPUs, the worst first, then without. */
function listedNodes() {
  const nodes = shown.nodes.slice(0, listed);
  return { nodes, hosts: shown.hosts.slice(0, listed - nodes.length) };
}

function showList() {
  const { nodes, hosts } = listedNodes();
  const [all, here] = [shown.nodes.length + shown.hosts.length, nodes.length + hosts.length];
  $("hosts").hidden = all === 0;
  $("nodes-title").textContent = all > here ? `Worst ${here} of ${nodesInWords(all, shown.nodes.length)}` : nodesInWords(all, shown.nodes.length);
  $("more-nodes").hidden = here === all || listed >= NODES_MAX;
  $("narrow").hidden = here === all;
  showNodes($("nodes"), nodes, hosts, fleet, details, serverNow());
}

function showGroups() {
  const keys = ["", ...["team", "rack"].filter((key) => fleet.labelKeys.includes(key)), ...fleet.labelKeys.filter((key) => !["team", "rack"].includes(key)), "model", "username", "job", "state"];
  if (grouping && !keys.includes(grouping)) grouping = "";
  put(group, keys.map((key) => make("option", { value: key, selected: key === grouping }, key || "nothing")));
  group.value = grouping;
}

async function lookAtMap() {
  const wanted = colour.value;
  const names = fleet.nodes && Date.now() - namesAt < 10e3 ? null : askNew("/v1/map/names");
  const [fresh, data] = await Promise.all([names, askNew(`/v1/map?colour=${wanted}`)]);
  if (names) namesAt = Date.now();
  if (fresh) {
    fleet.setNames(fresh);
    showGroups();
  }
  if (data) latest.set(wanted, data);
  if (wanted === colour.value && latest.has(wanted) && !fleet.setMap(latest.get(wanted))) namesAt = 0; // other GPUs: ask for names
  show();
}
let namesAt = 0;
const latest = new Map();

async function lookAtFleet() {
  const data = await askNew("/v1/fleet").catch((error) => {
    if (!totals) showVerdict($("verdict"), { level: "critical", word: "No answer", sentence: `The fleet cannot be shown: ${error.message}.`, action: "This page tries again. `gpuwarden doctor` on the collector's host says what is wrong with it.", path: "" });
    throw error;
  });
  if (!data) return;
  if (data.page !== version) location.reload();
  offsetMs = data.now - Date.now();
  ({ totals, unjudged } = data);
  document.title = `${data.incidents[0] ? `${data.incidents[0].total} open · ` : data.alerts[0] ? `${data.alerts[0].total} firing · ` : unjudged ? "not judged · " : ""}gpuwarden`;
  $("as-of").textContent = `as of ${stamp(data.now)} ${zoneName()}`;
  const isEmpty = !totals.nodes;
  for (const [id, isHidden] of [["empty", !isEmpty], ["totals", isEmpty], ["trouble", isEmpty]]) $(id).hidden = isHidden;
  showVerdict($("verdict"), data.verdict);
  if (isEmpty) return;
  showTotals($("totals"), totals, past.get(""), week, unjudged, narrow);
  showTrouble($("trouble"), data);
}

async function lookAtNodes() {
  const { nodes: listedNow, hosts } = listedNodes();
  const names = [...listedNow.map((node) => fleet.nodes[node]), ...hosts];
  if (!names.length || document.hidden) return;
  const { nodes } = await ask(`/v1/map/nodes?${names.map((name) => `node=${encodeURIComponent(name)}`).join("&")}`);
  details = new Map(nodes.map((one) => [one.node, one]));
  showList();
}

async function lookBack() {
  const keys = [...new Set(["", grouping])].filter((key) => !["node", "username", "job", "state"].includes(key));
  const [fresh, ...lines] = await Promise.all([askNew("/v1/fleet/week"), ...keys.map((key) => askNew(`/v1/fleet/past?by=${encodeURIComponent(key)}`))]);
  week = fresh ?? week;
  keys.forEach((key, number) => lines[number] && past.set(key, lines[number]));
  if (week?.all.hours) showWaste($("waste"), week);
  if (totals?.nodes) showTotals($("totals"), totals, past.get(""), week, unjudged, narrow);
  show();
}

function chooseView() {
  remember();
  show();
  nodesAgain();
}

/** The scale's image, drawn once. */
function drawScale() {
  const pen = $("scale").getContext("2d");
  for (let x = 0; x < 120; x += 1) {
    pen.fillStyle = `rgb(${colourOf(x / 119).join(" ")})`;
    pen.fillRect(x, 0, 1, 10);
  }
}

drawScale();
for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
const search = new Search(filter, $("suggestions"), () => fleet, chooseView);
const mapAgain = live(2000, lookAtMap);
live(2000, lookAtFleet);
const nodesAgain = live(5000, lookAtNodes);
const pastAgain = live(60e3, lookBack);
colour.addEventListener("change", () => {
  remember();
  mapAgain();
});
group.addEventListener("change", () => {
  grouping = group.value;
  remember();
  show();
  pastAgain();
});
for (const box of [$("legend"), $("heads")]) {
  box.addEventListener("click", (event) => {
    const text = event.target.closest("[data-filter]")?.dataset.filter;
    if (text) narrow(text);
  });
}
$("more-nodes").addEventListener("click", () => {
  listed += NODES_STEP;
  showList();
  nodesAgain();
});
$("clear").addEventListener("click", () => {
  filter.value = "";
  search.close();
  chooseView();
});
