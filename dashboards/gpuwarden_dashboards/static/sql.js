// The SQL page: an editor that completes tables and columns, the result as a table and a chart, downloads, saved queries, a link.

import { Annotations } from "./annotations.js";
import { bars, barsOf } from "./bars.js";
import { Chart, Shared } from "./chart.js";
import { facts, folded, make } from "./elements.js";
import { linesOf, measuresOf } from "./lines.js";
import { ask as askFor, change, logIn, request, ROWS_MS } from "./live.js";
import { table } from "./result.js";

const SHOWN_MAX = 2000;
const ADDRESS_MAX = 4000; // longer queries go behind the #, which the browser does not send
const WORDS = "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT USING AND OR NOT NULL IS IN BETWEEN LIKE ILIKE CASE WHEN THEN ELSE END DISTINCT HAVING QUALIFY WITH AS DESC ASC INTERVAL count( sum( avg( min( max( arg_max( date_trunc( time_bucket( now() quantile_cont( round( coalesce( list( FILTER OVER PARTITION".split(" ");

const editor = document.querySelector("#sql");
const list = document.querySelector("#suggestions");
const hint = document.querySelector("#hint");
const state = document.querySelector("#outcome");
const result = document.querySelector("#result");
const figure = document.querySelector("#chart");
const measure = document.querySelector("#measure");
const questions = document.querySelector("#questions");
const schema = document.querySelector("#schema");
const kept = document.querySelector("#kept");
let tables = [];
let running = null;
let answer = null;

// --- completion

let found = [];
let chosen = 0;

function word() {
  const before = editor.value.slice(0, editor.selectionStart);
  return /[A-Za-z_][\w.]*$/.exec(before)?.[0] ?? "";
}

/** Completions here, best first: columns of the tables that the query names, tables, keywords. */
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
      const said = make("span.soft", {}, [one.of, one.type, one.meaning].filter(Boolean).join(" · "));
      const take = (event) => {
        event.preventDefault();
        chosen = number;
        accept();
      };
      return make("li", { id: `suggestion-${number}`, role: "option", pointerdown: take }, one.name, " ", said);
    }),
  );
  mark();
}

function mark() {
  list.hidden = !found.length;
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
    found = [];
    mark();
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

/** The answer to the SQL of the editor, and its content as `read` gives it; of a refusal, its JSON. */
function ask(accept, read, signal) {
  const asked = {
    method: "POST",
    signal,
    waitMs: ROWS_MS,
    headers: { "Content-Type": "application/json", Accept: accept },
    body: JSON.stringify({ sql: editor.value }),
  };
  return request("/v1/sql", asked, async (answer) => ({ answer, content: await (answer.ok ? read(answer) : answer.json().catch(() => ({}))) }));
}

function failed(error) {
  state.className = "failed";
  state.textContent = error.message;
}

function sentence(said, status) {
  if (!said.error) return `the collector answers ${status}`;
  const place = said.position ? ` (line ${said.position.line}, column ${said.position.column})` : "";
  return said.error + (said.hint ? `; ${said.hint}` : "") + place;
}

async function run() {
  const url = new URL("/sql", location.href);
  if (encodeURIComponent(editor.value).length < ADDRESS_MAX) url.searchParams.set("q", editor.value);
  else url.hash = `q=${encodeURIComponent(editor.value)}`;
  history.replaceState(null, "", url);
  running?.abort();
  const mine = (running = new AbortController());
  state.className = "soft";
  state.textContent = "running …";
  document.querySelector("#cancel").hidden = false;
  try {
    const { answer: response, content: said } = await ask("application/json", (one) => one.json(), mine.signal);
    if (response.status === 401) return logIn();
    if (!response.ok) throw new Error(sentence(said, response.status));
    answer = said;
    const many = said.rows.length;
    const cut = said.truncated ? "; there are more: use LIMIT, or select less" : "";
    const shown = many > SHOWN_MAX ? `, the first ${SHOWN_MAX.toLocaleString("en")} shown` : "";
    state.textContent = `${many.toLocaleString("en")} ${many === 1 ? "row" : "rows"}${shown} in ${(1000 * said.elapsed_s).toFixed(0)} ms${cut}`;
    result.replaceChildren(table(said.columns, said.rows.slice(0, SHOWN_MAX)));
    offer();
    draw();
  } catch (error) {
    if (error.name === "AbortError") {
      if (mine === running) state.textContent = "cancelled";
      return;
    }
    failed(error);
    result.replaceChildren();
    answer = null;
    draw();
  } finally {
    if (mine === running) document.querySelector("#cancel").hidden = true;
  }
}

// --- chart

/** Offer a choice of one number; over time also all. */
function offer() {
  const before = measure.value;
  const places = measuresOf(answer.columns);
  const options = places.map((at) => new Option(answer.columns[at].name, String(at)));
  if (places.length > 1 && linesOf(answer.columns, answer.rows)) options.unshift(new Option("all numbers", ""));
  measure.replaceChildren(...options);
  const same = options.find((one) => one.value === before);
  if (same) measure.value = before;
}

let chart = null;

function draw() {
  chart?.close();
  chart = null;
  figure.replaceChildren();
  const at = measure.value === "" ? null : Number(measure.value);
  const data = answer && linesOf(answer.columns, answer.rows, at);
  const found = answer && !data && at !== null ? barsOf(answer.columns, answer.rows, at) : null;
  document.querySelector("#drawing").hidden = !(data || found);
  if (found) figure.append(bars(found, answer.columns[at].name));
  if (!data) return;
  const shared = new Shared(data.begin, data.begin + data.step * data.columns);
  chart = new Chart(figure, shared, "over time");
  shared.addEventListener("span", () => chart?.draw());
  chart.set(data);
  const annotations = new Annotations(shared, chart.caption);
  shared.addEventListener("span", () => annotations.look());
  annotations.look();
}

// --- downloads, the link, saved queries, the schema

for (const button of document.querySelectorAll("[data-format]")) {
  button.addEventListener("click", async () => {
    try {
      const { answer: response, content: file } = await ask(button.dataset.format, (one) => one.blob());
      if (response.status === 401) return logIn();
      if (!response.ok) throw new Error(sentence(file, response.status));
      const link = make("a", { href: URL.createObjectURL(file), download: `gpuwarden.${button.dataset.ending}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
      // A long answer says it at its end.
      const cut = response.headers.get("Gpuwarden-Truncated");
      const isCut = cut === null ? (await file.slice(-65536).text()).includes("gpuwarden.truncated") : cut === "true";
      if (!isCut) return null;
      throw new Error("the file is not complete: there are more rows than one answer may have");
    } catch (error) {
      return failed(error);
    }
  });
}

document.querySelector("#share").addEventListener("click", async () => {
  await run();
  try {
    await navigator.clipboard.writeText(location.href);
    state.textContent += " · the link is copied";
  } catch {
    state.textContent += " · the link is the address of this page"; // browsers allow copying with TLS only
  }
});

function saved(one) {
  const by = [one.author && `by ${one.author}`, one.saved_at.slice(0, 10)].filter(Boolean).join(", ");
  const remove = () => keep("DELETE", `/v1/queries/${encodeURIComponent(one.name)}?saved_by=${one.saved_by}`);
  return make("li", {},
    make("button", { type: "button", click: () => show(one.sql) }, one.name), " ", make("span.soft", {}, by),
    one.mine ? [" ", make("button.plain", { type: "button", "aria-label": `delete ${one.name}`, click: remove }, "delete")] : null);
}

async function showSaved() {
  const { queries } = await askFor("/v1/queries");
  kept.hidden = !queries.length;
  kept.querySelector("summary").textContent = `${queries.length} saved on this collector`;
  kept.querySelector("ul").replaceChildren(...queries.map(saved));
}

async function keep(method, path, document_) {
  try {
    await change(method, path, document_);
    await showSaved();
    kept.open = true;
    return true;
  } catch (error) {
    return failed(error);
  }
}

document.querySelector("#save").addEventListener("submit", async (event) => {
  event.preventDefault();
  const input = event.target.elements.name;
  if (!(await keep("POST", "/v1/queries", { name: input.value, sql: editor.value }))) return;
  state.className = "soft";
  state.textContent = `saved as ${input.value}`;
  input.value = "";
});

function show(sql) {
  editor.value = sql;
  run();
}

function columns(table_) {
  return facts("dl.columns", table_.columns.map((one) => {
    const name = make("button.plain", { type: "button", "data-insert": one.name }, make("code", {}, one.name));
    return [[name, " ", make("span.soft", {}, one.type)], one.meaning];
  }));
}

async function showSchema() {
  ({ tables } = await askFor(schema.dataset.path));
  schema.replaceChildren(...tables.map((one) => {
    const details = folded([make("code", {}, one.name), " ", make("span.soft", {}, one.meaning)]);
    details.addEventListener("toggle", () => details.append(columns(one)), { once: true });
    return details;
  }));
}

questions.addEventListener("change", () => questions.value && show(questions.value));
measure.addEventListener("change", draw);
document.querySelector("#run").addEventListener("click", run);
document.querySelector("#cancel").addEventListener("click", () => running?.abort());
schema.addEventListener("click", (event) => {
  const name = event.target.closest("[data-insert]")?.dataset.insert;
  if (!name) return;
  editor.setRangeText(name, editor.selectionStart, editor.selectionEnd, "end");
  editor.focus();
});
const given = new URL(location.href).searchParams.get("q") ?? new URLSearchParams(location.hash.slice(1)).get("q");
if (given) show(given);
const quietly = (error) => { hint.textContent = error.message; };
showSchema().catch(quietly);
showSaved().catch(quietly);
