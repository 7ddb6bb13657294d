// Lines of a few dozen points as SVG paths.

import { shape } from "./elements.js";

/** An image of values, null for a gap. `least` and `greatest` are the ends of the scale; `label` describes it. */
export function sparkline(values, { least = 0, greatest = null, label = "" } = {}) {
  const top = greatest ?? Math.max(least + 1e-9, ...values.map((value) => value ?? least)) * 1.05;
  const y = (value) => (22 - (20 * (Math.min(Math.max(value, least), top) - least)) / (top - least || 1)).toFixed(1);
  const x = (at) => ((100 * at) / Math.max(1, values.length - 1)).toFixed(1);
  let line = "";
  let area = "";
  let from = null;
  for (let at = 0; at <= values.length; at += 1) {
    const value = values[at] ?? null;
    if (value !== null) {
      line += `${from === null ? "M" : "L"}${x(at)} ${y(value)}`;
      area += `${from === null ? `M${x(at)} 23L` : "L"}${x(at)} ${y(value)}`;
      from ??= at;
    } else if (from !== null) {
      if (from === at - 1) line += "h.5"; // a single reading
      area += `L${x(at - 1)} 23Z`;
      from = null;
    }
  }
  const attributes = { viewBox: "0 0 100 24", preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": label };
  return shape("svg", attributes, shape("path", { d: area, class: "area" }), shape("path", { d: line, class: "line" }));
}
