// Policies and their cases: what they did, what they would have done, and the button that stops and starts all of them.

import { counted, make, put, usd } from "./elements.js";
import { ask, change, live } from "./live.js";
import { plainTable, scrolling } from "./result.js";
import { stamp } from "./times.js";

const SPAN = "30d";
const [button, said, trying, bar, cancel, outcome, tried] = ["stop", "counted", "trying", "progress", "cancel", "outcome", "tried"].map((id) => document.querySelector(`#${id}`));
const rows = (id, all) => put(document.querySelector(`#${id}`).tBodies[0], all);
const mayOperate = ["operate", "admin"].includes(document.documentElement.dataset.scope);
let isStopped = false;
let known = [];

function policyRow(one) {
  const state = one.state === "on" && !one.is_on ? "not on: nobody has read its dry run" : one.state;
  const run = make("button", { type: "button", "data-key": one.name, click: () => tryOut(one) }, `the last ${SPAN}`);
  return make("tr", {}, make("td", {}, one.name), make(state.startsWith("not") ? "td.failed" : "td", {}, state),
    make("td", {}, make("a", { href: `/rules/${one.rule}` }, one.rule)), make("td", {}, one.act), make("td", {}, run));
}

function caseRow(one) {
  const at = one.ended_at ?? one.next_at;
  return make("tr", {}, make("td", {}, one.policy), make("td", {}, one.target), make("td", {}, one.username || "–"),
    make(one.state === "failed" || one.state === "left" ? "td.failed" : "td", {}, one.state.replace("_", " ")),
    make("td", {}, at ? `${one.ended_at ? "" : "next "}${stamp(Date.parse(at))}` : "–"), make("td.text", {}, one.note || one.summary));
}

function resultRows(one) {
  const cells = (team, of, weeks) => make("tr", {}, make("td", {}, team === undefined ? one.policy : ""), make("td", {}, team === undefined ? "all" : team ?? "none"),
    make("td.number", {}, of.acts), make(of.wrong ? "td.number.failed" : "td.number", {}, of.wrong),
    make("td.number", {}, of.reused_hours === null ? "–" : of.reused_hours.toFixed(1)), make("td.number", {}, usd(of.saved_usd)), ...weeks.map((week) => make("td.number", {}, week)));
  const teams = one.teams.length > 1 || one.teams[0]?.team ? one.teams : [];
  return [cells(undefined, one, [usd(one.usd_a_week_before), usd(one.usd_a_week_since)]), ...teams.map((of) => cells(of.team, of, ["", ""]))];
}

async function look() {
  const found = await ask("/v1/policies").catch((error) => {
    if (error.status === 404) return null;
    throw error;
  });
  document.querySelector("#none").hidden = found !== null;
  button.hidden = found === null || !mayOperate;
  if (found === null) return;
  isStopped = found.stopped !== null;
  button.textContent = isStopped ? "start policies" : "stop all policies";
  const open = found.cases.filter((one) => one.ended_at === null).length;
  said.textContent = isStopped ? `Stopped by ${found.stopped.by}: nothing is said or done.` : `${counted(open, "open case")}, ${found.cases.length - open} ended in 30 days`;
  known = found.policies;
  rows("policies", found.policies.map(policyRow));
  rows("cases", found.cases.map(caseRow));
}

async function lookAtResults() {
  const found = await ask("/v1/policies/results").catch((error) => {
    if (error.status === 404) return { results: [] };
    throw error;
  });
  document.querySelector("#changed").hidden = !found.results.length;
  rows("results", found.results.flatMap(resultRows));
}

/** What a policy would have done, for people. */
function report(policy, run) {
  const saved = run.saved_usd === null ? "" : `, and saved ${usd(run.saved_usd)}`;
  const wrong = run.judged ? ` ${counted(run.wrong, "alert")} of ${run.judged} wrongly: the job was busy again within an hour.` : "";
  const cell = (value) => value ?? "–";
  const parts = [make("p", {}, make("b", {}, policy.name), ` would have done ${policy.act} ${counted(run.acts, "time")}${saved}.${wrong}${run.simulated ? " Some GPUs are simulated." : ""}`)];
  parts.push(scrolling("Outcomes", plainTable(["outcome", "alerts"], Object.entries(run.outcomes))));
  if (run.users.length) parts.push(scrolling("Users", plainTable(["username", "alerts", "jobs", "saved", "wrongly"], run.users.map((one) => [one.username ?? "not known", one.alerts, one.jobs, usd(one.saved_usd), one.wrong]))));
  if (run.listed.length) parts.push(scrolling("Acts", plainTable(["at", "where", "username", "job", "saved", "busy again"], run.listed.map((one) => [
    stamp(Date.parse(one.act_at)), Object.entries(one.labels).filter(([key]) => key !== "gpu_uuid").map((pair) => pair.join(" ")).join(", "), cell(one.username), cell(one.job), usd(one.saved_usd),
    one.busy_again_at === null ? "–" : stamp(Date.parse(one.busy_again_at)),
  ]))));
  if (policy.state === "on" && !policy.is_on && mayOperate) {
    const read = make("button", { type: "button" }, `I have read it: ${policy.name} may act`);
    read.addEventListener("click", async () => {
      await change("POST", `/v1/policies/${policy.name}/seen`, { digest: run.digest }).then(() => read.remove(), failed);
      again();
    });
    parts.push(make("p", {}, read));
  }
  tried.replaceChildren(...parts);
}

function failed(error) {
  outcome.textContent = error.message;
  outcome.className = "failed";
}

async function tryOut({ name }) {
  const policy = known.find((one) => one.name === name);
  trying.hidden = bar.hidden = cancel.hidden = false;
  trying.scrollIntoView({ block: "nearest" });
  tried.replaceChildren();
  outcome.className = "";
  outcome.textContent = `${name} over the last ${SPAN}`;
  bar.value = 0;
  try {
    let test = await change("POST", "/v1/backtests", { rule: policy.rule, since: SPAN });
    cancel.onclick = () => change("DELETE", `/v1/backtests/${test.id}`).catch(failed);
    while (test.state === "running") {
      await new Promise((resume) => setTimeout(resume, 700));
      test = await ask(`/v1/backtests/${test.id}`);
      bar.value = test.progress;
    }
    if (test.state !== "done") throw new Error(`${test.state}${test.reason ? `: ${test.reason}` : ""}`);
    report(known.find((one) => one.name === name) ?? policy, await ask(`/v1/policies/${name}/dry-run?backtest=${test.id}`));
  } catch (error) {
    failed(error);
  }
  bar.hidden = cancel.hidden = true;
}

const again = live(5000, look);
live(60000, lookAtResults);
button.addEventListener("click", async () => {
  button.disabled = true;
  await change("POST", `/v1/policies/${isStopped ? "start" : "stop"}`, {}).catch((error) => { said.textContent = error.message; });
  button.disabled = false;
  again();
});
