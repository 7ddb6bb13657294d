// Draws when alerts fired as a strip for each place, with text for screen readers.

import { make, shape } from "./elements.js";
import { duration } from "./result.js";
import { clock, minute } from "./times.js";

const ROWS_MAX = 60;
const WIDTH = 1000;

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
  const names = [...places.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const rows = names.slice(0, ROWS_MAX).map((name) => {
    const found = places.get(name);
    const seconds = found.reduce((sum, one) => sum + ((one.resolved_at ?? end) - Math.max(one.fired_at, begin)) / 1000, 0);
    const label = `${found.length === 1 ? "once" : `${found.length} times`}, ${duration(Math.round(seconds))}`;
    const bars = found.map((one) => {
      const from = Math.min(x(one.fired_at), WIDTH - 3);
      const lasted = duration(Math.round(((one.resolved_at ?? end) - one.fired_at) / 1000));
      return shape("rect", { x: from, y: 0, width: Math.max(3, x(one.resolved_at ?? end) - from), height: 12, class: `strip-${one.severity}` },
        shape("title", {}, `${minute(one.fired_at)}, ${lasted}${one.resolved_at ? "" : ", ongoing"}: ${one.summary}`));
    });
    return make("li", {}, make("span", {}, name),
      shape("svg", { viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        shape("rect", { x: 0, y: 0, width: WIDTH, height: 12, class: "strip-ground" }), bars));
  });
  const ticks = [0, 0.5, 1].map((share) => make("span", {}, clock(begin + share * (end - begin), Math.max(7e5, end - begin))));
  element.replaceChildren(make("ul.strips", {}, rows, make("li.soft.axis", {}, make("span"), make("span", {}, ticks))));
  if (names.length > ROWS_MAX) element.append(make("p.soft", {}, `and ${names.length - ROWS_MAX} more places`));
}
