// The page of collector and agents: lists are fetched again as HTML, counters from /metrics, rules from /v1/rules.

import { facts } from "./elements.js";
import { ask, live, logIn, request, requestPage } from "./live.js";
import { table } from "./result.js";

const PREFIX = "gpuwarden_collector_";
const SHOWN = [
  ["batches_total", "batches stored"],
  ["duplicate_batches_total", "batches sent again"],
  ["refused_batches_total", "batches not stored, by status"],
  ["left_out_rows_total", "rows about another node's GPU"],
  ["unknown_columns_total", "batches with unknown columns"],
  ["dropped_rows_total", "rows deleted by retention"],
  ["denied_requests_total", "requests denied, by reason"],
  ["malformed_requests_total", "requests that are not HTTP"],
  ["request_failures_total", "requests that failed"],
  ["query_errors_total", "queries that failed, by reason"],
  ["commit_failures_total", "commits that failed"],
  ["seal_failures_total", "failed moves to the lake"],
  ["rollup_failures_total", "rollups that failed"],
  ["maintenance_failures_total", "tasks that failed"],
  ["storage_restarts_total", "storage processes replaced"],
  ["query_restarts_total", "query processes replaced"],
  ["decode_hangs_total", "decoding threads replaced"],
  ["faults_total", "unexpected exceptions"],
  ["database_bytes", "segments and state file"],
  ["lake_bytes", "lake, by table"],
  ["lake_files", "files in the lake"],
  ["disk_spill_bytes", "spilled by queries"],
];

/** Samples of Prometheus's text format: `name`, `labels` (values of what is in braces), `value`. */
export function samplesOf(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const parts = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const labels = [...(parts[2] ?? "").matchAll(/\w+="((?:[^"\\]|\\.)*)"/g)].map((one) => one[1]);
    found.push({ name: parts[1], labels, value: Number(parts[3]) });
  }
  return found;
}

function said(name, value) {
  if (!name.endsWith("bytes")) return value.toLocaleString("en");
  return value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(1)} MiB` : `${(value / 2 ** 30).toFixed(1)} GiB`;
}

/** Of a histogram: how many, and their mean. */
function timing(samples, name) {
  const of = (end) => samples.find((one) => one.name === `${PREFIX}${name}_${end}`)?.value ?? 0;
  return of("count") ? `${of("count").toLocaleString("en")}, ${((1000 * of("sum")) / of("count")).toFixed(1)} ms each` : "none";
}

async function lookAtMetrics() {
  const { answer, text } = await request("/metrics", {}, async (one) => ({ answer: one, text: await one.text() }));
  if (answer.status === 401) return logIn();
  if (!answer.ok) throw new Error(`the collector answers ${answer.status}`);
  const samples = samplesOf(text);
  const found = [];
  for (const [name, meaning] of SHOWN) {
    const of = samples.filter((one) => one.name === PREFIX + name);
    if (!of.length) continue;
    const sum = of.reduce((total, one) => total + one.value, 0);
    const parts = of.filter((one) => one.labels.length && one.value).sort((a, b) => b.value - a.value);
    const named = parts.slice(0, 4).map((one) => `${one.labels.join(" ")} ${said(name, one.value)}`);
    found.push([meaning, said(name, sum) + (named.length ? ` (${named.join(", ")}${parts.length > 4 ? ", …" : ""})` : "")]);
  }
  for (const [name, meaning] of [["commit_seconds", "commits"], ["acknowledge_seconds", "answers to agents"], ["query_seconds", "queries"], ["seal_seconds", "moves to the lake"], ["rollup_seconds", "rollups"]]) {
    found.push([meaning, timing(samples, name)]);
  }
  document.querySelector("#metrics").replaceChildren(facts("dl.facts", found));
  return null;
}

async function lookAtRules() {
  const { rules } = await ask("/v1/rules");
  const columns = [["rule", "VARCHAR"], ["state", "VARCHAR"], ["ms", "DOUBLE"], ["evaluations", "BIGINT"], ["failures", "BIGINT"], ["every s", "DOUBLE"], ["firing", "BIGINT"], ["reason", "VARCHAR"]];
  const rows = rules
    .map((one) => [one.rule, one.state, one.last_seconds === null ? null : Math.round(10_000 * one.last_seconds) / 10, one.evaluations, one.failures, one.interval_s, one.firing, one.reason])
    .sort((a, b) => (b[1] !== "ok") - (a[1] !== "ok") || (b[2] ?? 0) - (a[2] ?? 0));
  document.querySelector("#rules").replaceChildren(table(columns.map(([name, type]) => ({ name, type })), rows));
}

async function lookAtAgents() {
  const fresh = await requestPage(location.href);
  if (!fresh) return;
  for (const id of ["fresh", "versions", "agents"]) document.getElementById(id).replaceWith(fresh.getElementById(id));
}

let turns = 0;
live(10_000, async () => {
  if (turns) await lookAtAgents();
  await lookAtMetrics();
  // The reader's order of the rows stays: rules change slowly.
  if (turns % 6 === 0) await lookAtRules();
  turns += 1;
});
