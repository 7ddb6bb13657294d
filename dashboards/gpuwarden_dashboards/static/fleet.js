// The fleet's page: the map, the filter, and what is wrong, kept up to date.

import { readable } from "./chart.js";
import { FleetMap } from "./fleetmap.js";
import { ask, live, logIn } from "./live.js";

const RANGES = {
  util_percent: ["percent", () => [0, 100]],
  power_watts: ["watts", (values) => [0, Math.max(1, ...values)]],
  temperature_celsius: ["celsius", () => [25, 90]],
  memory_percent: ["percent", () => [0, 100]],
};
const STATES = ["", ", not reporting", ", has a warning", ", has a critical alert"];

const colour = document.querySelector("#colour");
const filter = document.querySelector("#filter");
const legend = document.querySelector("#legend");
const counted = document.querySelector("#counted");
const here = new URL(location.href);
colour.value = here.searchParams.get("colour") ?? colour.value;
if (!RANGES[colour.value]) colour.value = "util_percent";
filter.value = here.searchParams.get("filter") ?? "";

let data = { nodes: [] };

const map = new FleetMap(document.querySelector("#map"), {
  describe: (node, place) =>
    `${node.name} GPU ${node.gpus[place]}: ${readable(node.values[place], RANGES[data.colour][0])}${STATES[node.states[place]]}`,
  onPick: (node, place) => {
    location.href = `/nodes/${encodeURIComponent(node.name)}?gpu=${node.gpus[place]}`;
  },
});

function matches(node) {
  const wanted = filter.value.trim().toLowerCase().split(/\s+/);
  return wanted.every((word) => node.text.includes(word));
}

function show() {
  if (!data.colour) return;
  const values = data.nodes.flatMap((node) => node.values.filter((value) => value !== null));
  const [unit, range] = RANGES[data.colour];
  const ends = range(values.length > 5000 ? values.filter((_, number) => number % 7 === 0) : values);
  map.set(data.nodes, ends, filter.value.trim() ? (node) => !matches(node) : null);
  legend.textContent = `${readable(ends[0], unit)} to ${readable(ends[1], unit)}`;
  const meant = data.nodes.filter(matches);
  const gpus = meant.reduce((sum, node) => sum + node.values.length, 0);
  const silent = meant.reduce((sum, node) => sum + node.states.filter((state) => state === 1).length, 0);
  counted.textContent = `${(gpus - silent).toLocaleString("en")} of ${gpus.toLocaleString("en")} GPUs reporting`;
  for (const row of document.querySelectorAll("tr[data-node]")) {
    row.hidden = Boolean(filter.value.trim()) && !matches({ text: row.dataset.text });
  }
}

function remember() {
  const url = new URL(location.href);
  for (const [name, value, usual] of [["colour", colour.value, "util_percent"], ["filter", filter.value, ""]]) {
    if (value === usual) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(null, "", url);
}

async function lookAtMap() {
  data = await ask(`/v1/map?colour=${encodeURIComponent(colour.value)}`);
  for (const node of data.nodes) node.text = `${node.name} ${node.text}`.toLowerCase();
  show();
}

/** The lists come as HTML: what is open, and the focus, stay. */
async function lookAtLists() {
  const answer = await fetch("/", { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(`the collector answers ${answer.status}`);
  if (answer.redirected) return logIn();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (fresh.querySelector("meta[name=version]")?.content !== document.querySelector("meta[name=version]").content) {
    location.reload();
    return null;
  }
  const open = new Set([...document.querySelectorAll("#lists details[open]")].map((one) => one.id));
  const focus = document.activeElement?.id;
  for (const one of fresh.querySelectorAll("#lists details")) one.open = open.has(one.id);
  document.querySelector("#lists").replaceWith(fresh.querySelector("#lists"));
  document.querySelector("#totals").replaceWith(fresh.querySelector("#totals"));
  document.title = fresh.title;
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  return show();
}

const again = live(2000, lookAtMap);
live(5000, lookAtLists);
colour.addEventListener("change", () => {
  remember();
  again();
});
filter.addEventListener("input", () => {
  remember();
  show();
});
