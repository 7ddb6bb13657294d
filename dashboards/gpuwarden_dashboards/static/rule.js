// The page of a rule: its definition, its episodes, and its backtest.

import { facts, folded, make } from "./elements.js";
import { ask, change } from "./live.js";
import { minute, stamp, zoneName } from "./times.js";
import { duration, plainTable, scrolling } from "./result.js";
import { placeOf, strips } from "./episodes.js";

const page = document.querySelector("#rule");
const name = page.dataset.rule;
const written = document.querySelector("#written");
const history_ = document.querySelector("#history");
const testing = document.querySelector("#testing");
const form = document.querySelector("#backtest");
const [run, cancel, bar, outcome, result] = ["run", "cancel", "progress", "outcome", "result"].map((id) => document.querySelector(`#${id}`));

/** A text of the rule's file: backquotes mark code; other marks are dropped, links become their text. */
function prose(lead, text) {
  const made = make("p", {}, lead);
  const plain = (part) => part.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/(^|\W)\*([^*]+)\*/g, "$1$2");
  text.split("`").forEach((part, number) => made.append(number % 2 ? make("code", {}, part) : plain(part)));
  return made;
}

function cells(heads, rows, label) {
  const texts = rows.map((row) => row.map((value) => value ?? "–"));
  return scrolling(label, plainTable(heads, texts, (text) => (String(text).length > 40 ? "text" : "")));
}

const code = (text) => make("pre", { tabindex: 0 }, text);

const SPAN = /(_?window|lookback|_within|_after|_for|recent|slack|wait)$/;
const value = (key, number) => (typeof number === "number" && SPAN.test(key) ? duration(number) : typeof number === "number" ? number.toLocaleString("en", { maximumFractionDigits: 6 }) : String(number));

function describe(rule) {
  const about = make(`div.alert.${rule.severity}`, {},
    make("p.lead", {}, make("span.level", {}, rule.severity), ` ${rule.page?.title ?? rule.summary}`),
    rule.page?.description ? prose("", rule.page.description) : null,
    make("p.soft", {}, `Says: ${rule.summary}`),
    prose("What to do: ", rule.page?.actions || rule.remedy),
    rule.page?.checks ? prose("Check by hand: ", rule.page.checks) : null);
  const said = [
    ["state", (rule.state === "waiting" ? "warming up" : rule.state) + (rule.reason ? `: ${rule.reason}` : "")],
    ["means", rule.consequence.replace(/_/g, " ")],
    ["evaluated", `every ${duration(rule.interval_s)}, took ${rule.last_seconds === null ? "–" : `${rule.last_seconds.toFixed(2)} s`}`],
    ["must hold", rule.for_s ? duration(rule.for_s) : "not at all"],
    ["keeps firing", rule.keep_firing_for_s ? duration(rule.keep_firing_for_s) : "not after it ends"],
    ["failures", rule.failures],
    ["file", rule.sql === null ? "none: the collector itself makes its alerts" : `${rule.file.split("/").at(-1)}:${rule.line}`],
  ];
  page.replaceChildren(about, facts("dl.facts", said));
}

function details(rule) {
  const parts = [];
  const params = Object.entries(rule.params);
  if (params.length) {
    parts.push(make("h2", {}, "Thresholds"));
    const rows = params.map(([key, number]) => [key, value(key, number), rule.page?.sources[key] ?? "", rule.overridden.filter((one) => key in one.params).map((one) => `${value(key, one.params[key])} where ${Object.entries(one.match).map((pair) => pair.join("=")).join(", ") || "everywhere"}`).join("; ")]);
    parts.push(cells(["parameter", "value", "why", "overridden"], rows, "Thresholds"));
  }
  const off = rule.overridden.filter((one) => one.enabled !== null || one.severity !== null);
  for (const one of off) {
    const where = Object.entries(one.match).map((pair) => pair.join("=")).join(", ") || "everywhere";
    parts.push(make("p", {}, `${one.enabled === false ? "Disabled" : one.severity ? `Severity ${one.severity}` : "Enabled"} ${where} by ${one.file.split("/").at(-1)}:${one.line}.`));
  }
  if (rule.page?.quiet.length) {
    parts.push(make("h2", {}, "Does not fire for"));
    parts.push(make("ul", {}, rule.page.quiet.map((text) => make("li", {}, text))));
  }
  if (rule.sql === null) return written.replaceChildren(...parts);
  parts.push(make("h2", {}, "Cases"));
  parts.push(make("p.soft", {}, rule.cases.length ? "Rows in the tables, and whether the rule must fire; gpuwarden rules test runs them." : "The rule has no test cases."));
  for (const one of rule.cases) {
    const tag = make(one.fires ? "span.tag.fires" : "span.tag", {}, one.fires ? "fires" : "stays quiet");
    parts.push(folded([tag, ` ${one.name}`], code(one.text)));
  }
  parts.push(make("h2", {}, "Text"), make("p.soft", {}, `Needs ${[...rule.requires, ...(rule.one_of.length ? [`one of (${rule.one_of.join(", ")})`] : [])].join(", ") || "nothing"}${rule.optional.length ? `; reads ${rule.optional.join(", ")} if present` : ""}.`));
  parts.push(folded("SQL", code(rule.sql)));
  if (rule.source) parts.push(folded("source (YAML)", code(rule.source)));
  return written.replaceChildren(...parts);
}

const usd = (amount) => (amount === null ? "–" : `$${amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`);

function tell(test) {
  const isRunning = test.state === "running";
  run.disabled = isRunning;
  cancel.hidden = bar.hidden = !isRunning;
  bar.value = test.progress;
  const span = `${stamp(Date.parse(test.since)).slice(0, 16)} to ${minute(Date.parse(test.until))}`;
  const words = {
    running: test.progress ? `${Math.round(test.progress * 100)} % of ${span}` : "reading stored data",
    cancelled: "cancelled",
    failed: `failed: ${test.reason}`,
    "cannot say": `cannot say: ${test.reason}`,
    done: `${test.fired === 0 ? "would not have fired" : `would have fired ${test.fired === 1 ? "once" : `${test.fired} times`}`} from ${span}${test.usd === null || test.usd === undefined ? "" : `, at a cost of ${usd(test.usd)}`}`,
  };
  outcome.textContent = words[test.state];
  outcome.className = test.state === "failed" ? "failed" : "";
  if (test.state !== "done") return result.replaceChildren();
  const picture = make("div");
  const episodes = test.episodes.map((one) => ({ ...one, fired_at: Date.parse(one.fired_at), resolved_at: one.resolved_at && Date.parse(one.resolved_at) }));
  result.replaceChildren();
  if (episodes.length) {
    strips(picture, episodes, Date.parse(test.since), Date.parse(test.until));
    const rows = episodes.map((one) => [stamp(one.fired_at), duration(Math.round(((one.resolved_at ?? Date.parse(test.until)) - one.fired_at) / 1000)) + (one.resolved_at ? "" : ", ongoing"), placeOf(one.labels), one.owner, usd(one.usd), one.summary]);
    result.append(picture, cells([`fired (${zoneName()})`, "for", "where", "owner", "cost", "summary"], rows, "Backtest"));
  }
  result.append(make("p.soft", {}, `${test.evaluations} evaluations by ${test.queries} queries in ${test.seconds.toFixed(1)} s, at most ${duration(test.step_s)} apart; changes are known to within ${duration(test.resolution_s)}.`));
  return null;
}

async function follow(id) {
  for (;;) {
    let test;
    try {
      test = await ask(`/v1/backtests/${id}`);
    } catch (error) {
      outcome.textContent = error.message;
      run.disabled = false;
      cancel.hidden = bar.hidden = true;
      return;
    }
    if (test.rule !== name) return;
    tell(test);
    if (test.state !== "running") return;
    await new Promise((resume) => setTimeout(resume, 700));
  }
}

function failed(error) {
  outcome.textContent = error.message;
  outcome.className = "failed";
}

function remember(id) {
  const url = new URL(location.href);
  url.searchParams.set("backtest", id);
  history.replaceState(null, "", url);
  cancel.onclick = () => change("DELETE", `/v1/backtests/${id}`).catch(failed);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  run.disabled = true;
  outcome.className = "";
  result.replaceChildren();
  const since = document.querySelector("#span").value;
  let begun;
  try {
    begun = await change("POST", "/v1/backtests", { rule: name, since });
  } catch (error) {
    run.disabled = false;
    failed(error);
    return;
  }
  remember(begun.id);
  await follow(begun.id);
});

const episodes = JSON.parse(document.querySelector("#episodes").textContent);
if (episodes.length) strips(history_, episodes, Number(history_.dataset.begin), Number(history_.dataset.end));
ask(`/v1/rules/${encodeURIComponent(name)}`).then(
  (rule) => {
    describe(rule);
    details(rule);
    // Without SQL there is nothing to run over the past.
    testing.hidden = rule.sql === null;
  },
  (error) => {
    page.replaceChildren(make("p.failed", {}, error.message));
    testing.hidden = true;
  },
);
const wanted = new URL(location.href).searchParams.get("backtest");
const { running } = await ask("/v1/backtests").catch(() => ({}));
if (running?.rule === name) {
  remember(running.id);
  follow(running.id);
} else if (wanted) {
  remember(wanted);
  follow(wanted);
}
