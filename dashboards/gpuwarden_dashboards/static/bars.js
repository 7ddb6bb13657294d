// A result without time as bars: a bar a row, as SVG, which the strict policy lets have its own sizes.

import { shape } from "./elements.js";
import { compare } from "./result.js";

const BARS_MAX = 40;
const LINE = 22;
const LABEL_MAX = 220;
const WIDTH = 900;
const CHARACTER = 7.3;

/** Names and values of the largest rows, by a column with numbers; null where there is no text to name them. */
export function barsOf(columns, rows, at) {
  const names = columns.flatMap((one, place) => (/^(VARCHAR|ENUM|DATE|TIMESTAMP)/.test(one.type) ? [place] : []));
  const indices = columns.flatMap((one, place) => (/^(gpu|link|rank)$/.test(one.name) && place !== at ? [place] : []));
  if (!names.length) return null;
  const named = rows
    .filter((row) => row[at] !== null)
    .map((row) => ({ name: [...names.slice(0, 2), ...indices].map((place) => row[place] ?? "–").join(" "), value: row[at] }));
  if (!named.length || named.some((one) => one.value < 0)) return null;
  return named.sort((a, b) => compare(b.value, a.value)).slice(0, BARS_MAX);
}

/** The drawing, `wide` pixels wide where there is room; the result's table has the same values. */
export function bars(found, title, wide = WIDTH) {
  const height = LINE * found.length;
  const label = Math.min(LABEL_MAX, 0.4 * wide);
  const letters = Math.floor((label - 8) / CHARACTER);
  const most = Math.max(...found.map((one) => one.value)) || 1;
  const drawing = shape("svg", { viewBox: `0 0 ${wide} ${height}`, class: "bars", role: "img", "aria-label": `${title}: ${found[0].name} ${found[0].value} at most` });
  found.forEach((one, number) => {
    const y = LINE * number;
    const width = ((wide - label - 110) * one.value) / most;
    const name = one.name.length > letters ? `${one.name.slice(0, letters - 1)}…` : one.name;
    drawing.append(
      shape("text", { x: label - 8, y: y + 15, "text-anchor": "end" }, name),
      shape("rect", { x: label, y: y + 3, width: Math.max(1, width), height: LINE - 6, class: "amount" }),
      shape("text", { x: label + width + 6, y: y + 15 }, Number(one.value.toPrecision(6)).toLocaleString("en")),
    );
  });
  return drawing;
}
