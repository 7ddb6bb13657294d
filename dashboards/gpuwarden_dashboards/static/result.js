// Makes tables: of plain texts, and of a query's result with columns that sort.

import { make } from "./elements.js";

function text(value, type) {
  if (value === null) return "–";
  if (typeof value === "number" && /^INTERVAL/.test(type)) return duration(value);
  if (typeof value === "number" && type === "FLOAT") return String(Number(value.toPrecision(7)));
  if (typeof value === "number" && type === "DOUBLE") return String(Number(value.toPrecision(12)));
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** 2 h 05 min of seconds. */
export function duration(seconds) {
  const whole = Math.abs(seconds);
  const sign = seconds < 0 ? "-" : "";
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 60) return `${sign}${Number(whole.toFixed(3))} s`;
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${sign}${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
  return `${sign}${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Order of two values; absent ones come last. */
export function compare(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A table of texts; `classOf(text, column)` is the class of a cell. */
export function plainTable(heading, rows, classOf = () => "") {
  const cell = (text, column) => make("td", { class: classOf(text, column) || null }, String(text ?? ""));
  return make("table", {},
    make("thead", {}, make("tr", {}, heading.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, rows.map((texts) => make("tr", {}, texts.map(cell)))));
}

/** A box that scrolls its content, with the keyboard too. */
export function scrolling(label, content) {
  return make("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, content);
}

/** The table of a result. */
export function table(columns, rows) {
  let by = null;
  let isDown = false;
  const body = make("tbody");
  const heads = columns.map((column, at) =>
    make(rows.some((row) => typeof row[at] === "number") ? "th.number" : "th", { scope: "col" },
      make("button", { type: "button", title: column.type, click: () => sort(at) }, column.name)));

  function fill(ordered) {
    const cell = (value, at) => make(typeof value === "number" ? "td.number" : "td", {}, text(value, columns[at].type));
    body.replaceChildren(...ordered.map((row) => make("tr", {}, row.map(cell))));
  }

  function sort(at) {
    isDown = by === at && !isDown;
    by = at;
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[at].setAttribute("aria-sort", isDown ? "descending" : "ascending");
    fill([...rows].sort((a, b) => compare(a[at], b[at]) * (isDown && a[at] !== null && b[at] !== null ? -1 : 1)));
  }

  fill(rows);
  return make("table", {}, make("thead", {}, make("tr", {}, heads)), body);
}
