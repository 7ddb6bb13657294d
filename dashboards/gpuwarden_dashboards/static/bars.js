// A result without time as bars: a bar a row, as SVG, which the strict policy lets have its own sizes.

import { shape } from "./elements.js";
import { compare } from "./result.js";

const BARS_MAX = 40;
const LINE = 22;
const LABEL = 220;
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

/** The drawing; the result's table has the same values. */
export function bars(found, title) {
  const height = LINE * found.length;
  const letters = Math.floor((LABEL - 8) / CHARACTER);
  const most = Math.max(...found.map((one) => one.value)) || 1;
  const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "bars", role: "img", "aria-label": `${title}: ${found[0].name} ${found[0].value} at most` });
  found.forEach((one, number) => {
    const y = LINE * number;
    const width = ((WIDTH - LABEL - 110) * one.value) / most;
    const name = one.name.length > letters ? `${one.name.slice(0, letters - 1)}…` : one.name;
    drawing.append(
      shape("text", { x: LABEL - 8, y: y + 15, "text-anchor": "end" }, name),
      shape("rect", { x: LABEL, y: y + 3, width: Math.max(1, width), height: LINE - 6, class: "amount" }),
      shape("text", { x: LABEL + width + 6, y: y + 15 }, Number(one.value.toPrecision(6)).toLocaleString("en")),
    );
  });
  return drawing;
}
