// The SQL page: an editor that completes tables and columns, the result as a table and a chart, downloads, a link to share.

import { Chart, Shared } from "./chart.js";
import { logIn } from "./live.js";
import { table } from "./result.js";

const SHOWN_MAX = 2000;
const KEEP = "gpuwarden-queries";
const WORDS = "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT USING AND OR NOT NULL IS IN BETWEEN LIKE ILIKE CASE WHEN THEN ELSE END DISTINCT HAVING QUALIFY WITH AS DESC ASC INTERVAL count( sum( avg( min( max( arg_max( date_trunc( time_bucket( now() quantile_cont( round( coalesce( list( FILTER OVER PARTITION".split(" ");

const editor = document.querySelector("#sql");
const list = document.querySelector("#suggestions");
const hint = document.querySelector("#hint");
const state = document.querySelector("#outcome");
const result = document.querySelector("#result");
const figure = document.querySelector("#chart");
const saved = document.querySelector("#saved");
const tables = JSON.parse(document.querySelector("#tables").textContent);
let running = null;
let answer = null;

// --- completion

let found = [];
let chosen = 0;

function word() {
  const before = editor.value.slice(0, editor.selectionStart);
  return /[A-Za-z_][\w.]*$/.exec(before)?.[0] ?? "";
}

/** What may stand here, best first: columns of the tables that the query names, tables, words. */
export function candidates(text, prefix, known, words) {
  const wanted = prefix.split(".").at(-1).toLowerCase();
  if (!wanted) return [];
  const named = known.filter((one) => new RegExp(`\\b${one.name}\\b`, "i").test(text));
  const columns = named.flatMap((one) => one.columns.map((column) => ({ ...column, of: one.name })));
  const all = [...columns, ...known.map((one) => ({ name: one.name, meaning: one.meaning })), ...words.map((name) => ({ name, meaning: "" }))];
  const seen = new Set();
  const fits = all.filter((one) => {
    const name = one.name.toLowerCase();
    if (name === wanted || !name.includes(wanted) || seen.has(name)) return false;
    seen.add(name);
    return true;
  });
  return [...fits.filter((one) => one.name.toLowerCase().startsWith(wanted)), ...fits.filter((one) => !one.name.toLowerCase().startsWith(wanted))].slice(0, 12);
}

function suggest() {
  found = candidates(editor.value, word(), tables, WORDS);
  chosen = 0;
  list.replaceChildren(
    ...found.map((one, number) => {
      const item = document.createElement("li");
      item.id = `suggestion-${number}`;
      item.setAttribute("role", "option");
      item.textContent = one.name;
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        chosen = number;
        accept();
      });
      return item;
    }),
  );
  mark();
}

function mark() {
  list.hidden = !found.length;
  editor.setAttribute("aria-expanded", String(found.length > 0));
  [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
  if (found.length) editor.setAttribute("aria-activedescendant", `suggestion-${chosen}`);
  else editor.removeAttribute("aria-activedescendant");
  const one = found[chosen];
  hint.textContent = one ? [one.of ? `${one.of}.${one.name}` : one.name, one.type, one.meaning].filter(Boolean).join(" · ") : "";
}

function accept() {
  const one = found[chosen];
  if (!one) return;
  const from = editor.selectionStart - word().split(".").at(-1).length;
  editor.setRangeText(one.name, from, editor.selectionStart, "end");
  found = [];
  list.replaceChildren();
  mark();
  editor.focus();
}

editor.addEventListener("input", suggest);
editor.addEventListener("blur", () => {
  found = [];
  mark();
});
editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  } else if (found.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    chosen = (chosen + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
    mark();
  } else if (found.length && (event.key === "Tab" || event.key === "Enter")) {
    event.preventDefault();
    accept();
  } else if (event.key === "Escape") {
    found = [];
    mark();
  }
});

// --- running

function ask(accept, signal) {
  return fetch("/v1/sql", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", Accept: accept },
    body: JSON.stringify({ sql: editor.value }),
  });
}

async function run() {
  const url = new URL(location.href);
  url.searchParams.set("q", editor.value);
  history.replaceState(null, "", url);
  running?.abort();
  const mine = (running = new AbortController());
  state.className = "soft";
  state.textContent = "running …";
  document.querySelector("#cancel").hidden = false;
  try {
    const response = await ask("application/json", mine.signal);
    if (response.status === 401) return logIn();
    const said = await response.json();
    if (!response.ok) throw new Error(said.error);
    answer = said;
    const many = said.rows.length;
    const cut = said.truncated ? "; there are more: use LIMIT, or select less" : "";
    const shown = many > SHOWN_MAX ? `, the first ${SHOWN_MAX.toLocaleString("en")} shown` : "";
    state.textContent = `${many.toLocaleString("en")} ${many === 1 ? "row" : "rows"}${shown} in ${(1000 * said.elapsed_s).toFixed(0)} ms${cut}`;
    result.replaceChildren(table(said.columns, said.rows.slice(0, SHOWN_MAX)));
    draw();
  } catch (error) {
    if (error.name === "AbortError") {
      if (mine === running) state.textContent = "cancelled";
      return;
    }
    state.className = "failed";
    state.textContent = error instanceof TypeError ? "the collector does not answer" : error.message;
    result.replaceChildren();
    figure.replaceChildren();
    answer = null;
  } finally {
    if (mine === running) document.querySelector("#cancel").hidden = true;
  }
}

// --- chart

/** Lines over time of a result: a line for each number, and for each value of a text column; null: nothing to draw. */
export function linesOf(columns, rows) {
  const time = columns.findIndex((one) => /^(TIMESTAMP|DATE)/.test(one.type));
  const isNumber = (one) => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL|REAL)/.test(one.type);
  const numbers = columns.flatMap((one, at) => (isNumber(one) && !/^(gpu|pid|rank|link)$/.test(one.name) ? [at] : []));
  if (time < 0 || !numbers.length || rows.length < 2) return null;
  const texts = columns.flatMap((one, at) => (at !== time && !numbers.includes(at) ? [at] : []));
  const times = rows.map((row) => Date.parse(row[time]));
  const there = times.filter((ms) => !Number.isNaN(ms));
  const begin = there.reduce((a, b) => Math.min(a, b), Infinity);
  const end = there.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(end > begin)) return null;
  const distinct = new Set(there).size;
  const count = Math.min(600, distinct);
  const step = (end - begin) / Math.max(1, count - 1);
  const lines = new Map();
  rows.forEach((row, number) => {
    const column = Math.round((times[number] - begin) / step);
    if (Number.isNaN(column)) return;
    for (const at of numbers) {
      const name = [...texts.map((text) => row[text]), ...(numbers.length > 1 || !texts.length ? [columns[at].name] : [])].join(" · ");
      const line = lines.get(name) ?? { name, unit: "", sum: Array(count).fill(0), n: Array(count).fill(0), least: Array(count).fill(null), greatest: Array(count).fill(null) };
      lines.set(name, line);
      const value = row[at];
      if (value === null || column >= count) continue;
      line.sum[column] += value;
      line.n[column] += 1;
      line.least[column] = line.least[column] === null ? value : Math.min(line.least[column], value);
      line.greatest[column] = line.greatest[column] === null ? value : Math.max(line.greatest[column], value);
    }
  });
  const drawn = [...lines.values()].slice(0, 16).map((line) => ({ ...line, mean: line.sum.map((sum, at) => (line.n[at] ? sum / line.n[at] : null)) }));
  return { begin: begin - step / 2, step, columns: count, lines: drawn };
}

function draw() {
  figure.replaceChildren();
  const data = answer && linesOf(answer.columns, answer.rows);
  figure.hidden = !data;
  if (!data) return;
  const shared = new Shared(data.begin, data.begin + data.step * data.columns);
  const chart = new Chart(figure, shared, "over time");
  shared.addEventListener("span", () => chart.draw());
  chart.set(data);
}

// --- downloads, saved queries, the schema

for (const button of document.querySelectorAll("[data-format]")) {
  button.addEventListener("click", async () => {
    try {
      const response = await ask(button.dataset.format);
      if (!response.ok) throw new Error((await response.json()).error);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await response.blob());
      link.download = `gpuwarden.${button.dataset.ending}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
    } catch (error) {
      state.className = "failed";
      state.textContent = error.message;
    }
  });
}

function kept() {
  try {
    const read = JSON.parse(localStorage.getItem(KEEP) ?? "[]");
    return Array.isArray(read) ? read.filter((one) => typeof one?.name === "string" && typeof one?.sql === "string") : [];
  } catch {
    return [];
  }
}

function showSaved() {
  const mine = kept();
  for (const old of saved.querySelectorAll("optgroup[data-mine]")) old.remove();
  if (!mine.length) return;
  const group = document.createElement("optgroup");
  group.label = "saved in this browser";
  group.dataset.mine = "";
  for (const one of mine) {
    const option = document.createElement("option");
    option.textContent = one.name;
    option.value = one.sql;
    group.append(option);
  }
  saved.append(group);
}

saved.addEventListener("change", () => {
  if (!saved.value) return;
  editor.value = saved.value;
  run();
});
document.querySelector("#save").addEventListener("click", () => {
  const name = document.querySelector("#name").value.trim();
  if (!name) return document.querySelector("#name").focus();
  localStorage.setItem(KEEP, JSON.stringify([...kept().filter((one) => one.name !== name), { name, sql: editor.value }]));
  showSaved();
});
document.querySelector("#run").addEventListener("click", run);
document.querySelector("#cancel").addEventListener("click", () => running?.abort());
document.querySelector("#schema").addEventListener("click", (event) => {
  const name = event.target.closest("[data-insert]")?.dataset.insert;
  if (!name) return;
  editor.setRangeText(name, editor.selectionStart, editor.selectionEnd, "end");
  editor.focus();
});
showSaved();
const given = new URL(location.href).searchParams.get("q");
if (given) {
  editor.value = given;
  run();
}
