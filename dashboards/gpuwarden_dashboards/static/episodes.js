// Draws when alerts fired as a strip for each place, with text for screen readers.

import { clock } from "./chart.js";
import { duration } from "./result.js";

const SVG = "http://www.w3.org/2000/svg";
const ROWS_MAX = 60;
const WIDTH = 1000;

function shape(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

/** Where an alert is, in words, by its labels. */
export function placeOf(labels) {
  if (labels.place) return labels.place;
  const { node, gpu, gpu_uuid: uuid, ...rest } = labels;
  const parts = [node, gpu === undefined ? null : `GPU ${gpu}`, ...Object.entries(rest).map(([key, value]) => `${key} ${value}`)];
  return parts.filter(Boolean).join(" ") || uuid || "fleet";
}

/** Fill the element; `episodes`: {labels, fired_at, resolved_at (null: ongoing), severity, summary}, times in milliseconds. */
export function strips(element, episodes, begin, end) {
  const places = new Map();
  for (const one of episodes) {
    const name = placeOf(one.labels);
    if (!places.has(name)) places.set(name, []);
    places.get(name).push(one);
  }
  const first = Math.min(...episodes.map((one) => one.fired_at));
  begin = Math.max(begin, Math.min(first - (end - first) / 10, end - 3600e3));
  const x = (ms) => ((Math.min(Math.max(ms, begin), end) - begin) / (end - begin)) * WIDTH;
  const list = document.createElement("ul");
  list.className = "strips";
  const names = [...places.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  for (const name of names.slice(0, ROWS_MAX)) {
    const found = places.get(name);
    const item = document.createElement("li");
    const label = document.createElement("span");
    label.textContent = name;
    const seconds = found.reduce((sum, one) => sum + ((one.resolved_at ?? end) - Math.max(one.fired_at, begin)) / 1000, 0);
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", `0 0 ${WIDTH} 12`);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", `${found.length === 1 ? "once" : `${found.length} times`}, ${duration(Math.round(seconds))}`);
    shape("rect", { x: 0, y: 0, width: WIDTH, height: 12, class: "strip-ground" }, picture);
    for (const one of found) {
      const from = Math.min(x(one.fired_at), WIDTH - 3);
      const bar = shape("rect", { x: from, y: 0, width: Math.max(3, x(one.resolved_at ?? end) - from), height: 12, class: `strip-${one.severity}` }, picture);
      const lasted = duration(Math.round(((one.resolved_at ?? end) - one.fired_at) / 1000));
      shape("title", {}, bar).textContent = `${new Date(one.fired_at).toISOString().slice(0, 16).replace("T", " ")} UTC, ${lasted}${one.resolved_at ? "" : ", ongoing"}: ${one.summary}`;
    }
    item.append(label, picture);
    list.append(item);
  }
  const axis = document.createElement("li");
  axis.className = "soft axis";
  const ticks = document.createElement("span");
  for (const share of [0, 0.5, 1]) {
    const tick = document.createElement("span");
    tick.textContent = clock(begin + share * (end - begin), Math.max(7e5, end - begin));
    ticks.append(tick);
  }
  axis.append(document.createElement("span"), ticks);
  list.append(axis);
  element.replaceChildren(list);
  if (names.length > ROWS_MAX) {
    const more = document.createElement("p");
    more.className = "soft";
    more.textContent = `and ${names.length - ROWS_MAX} more places`;
    element.append(more);
  }
}
