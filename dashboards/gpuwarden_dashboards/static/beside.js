// Small lines of the GPUs of a node or a job under each other, on one scale, so that an odd one stands out.

import { readable } from "./chart.js";
import { make, put } from "./elements.js";
import { ask } from "./live.js";
import { sparkline } from "./sparkline.js";

const COLUMNS = 80;
const SHOWN_MAX = 64;
const ODD = 0.15;
const SPREADS = 4;

function meanOf(values) {
  const there = values.filter((value) => value !== null);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
}

/** The middle one of numbers; null of none. */
export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** What distinguishes a mean from the others, in words; empty: nothing does. Where all differ, none is odd: `spread` is the
 * median of their distances from the middle. */
export function oddity(mean, middle, spread) {
  if (mean === null || !middle) return "";
  const away = Math.abs(mean - middle);
  if (away < ODD * middle || away < SPREADS * spread) return "";
  return `${Math.round((100 * away) / middle)} % ${mean < middle ? "below" : "above"} the median`;
}

/** Readings of GPUs over a span, for `show`. */
export function askBeside(uuids, metric, { begin, end }, signal) {
  const asked = new URLSearchParams({
    gpu_uuid: uuids.slice(0, SHOWN_MAX).join(","), metrics: metric, columns: COLUMNS, begin: Math.round(begin), end: Math.round(end),
  });
  return ask(`/v1/series?${asked}`, signal);
}

/** Draw them; `own` is the UUID of the page's GPU, `count` how many there are. Links keep the choices of the address. */
export function showBeside(element, { lines }, own, count) {
  const means = lines.map((line) => meanOf(line.mean));
  const known = means.filter((mean) => mean !== null);
  const middle = median(known);
  const spread = median(known.map((mean) => Math.abs(mean - middle)));
  const isShare = lines[0]?.unit === "percent";
  const greatest = isShare ? 100 : lines.flatMap((line) => line.mean).reduce((most, value) => Math.max(most, value ?? 0), 0) * 1.05 || 1;
  const items = lines.map((line, number) => {
    const name = `${line.node} GPU ${line.gpu}`;
    const isOwn = line.gpu_uuid === own;
    const value = readable(means[number], line.unit);
    const odd = oddity(means[number], middle, spread);
    return make(odd ? "li.odd" : "li", { "aria-current": isOwn ? "true" : null },
      make("a", { href: `/gpus/${encodeURIComponent(line.gpu_uuid)}${location.search}`, "data-key": line.gpu_uuid }, name),
      sparkline(line.mean, { greatest, label: `${name}: mean ${value}` }),
      make("b", {}, value),
      make("span.soft", {}, odd || (isOwn ? "this one" : "")));
  });
  const beyond = count - lines.length;
  put(element,
    make("ul.beside", {}, items.length ? items : make("li", {}, "No readings in this span.")),
    beyond > 0 ? make("p.soft", {}, `${beyond} more do not report it, or are not shown.`) : null);
}
