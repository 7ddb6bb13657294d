// Policies and their cases; the button stops and starts all of them.

import { counted, make, put } from "./elements.js";
import { ask, change, live } from "./live.js";
import { stamp } from "./times.js";

const button = document.querySelector("#stop");
const said = document.querySelector("#counted");
const rows = (id, all) => put(document.querySelector(`#${id}`).tBodies[0], all);
let isStopped = false;

function policyRow(one) {
  const state = one.state === "on" && !one.is_on ? "not on: nobody has read its dry run" : one.state;
  return make("tr", {}, make("td", {}, one.name), make(state.startsWith("not") ? "td.failed" : "td", {}, state),
    make("td", {}, make("a", { href: `/rules/${one.rule}` }, one.rule)), make("td", {}, one.act));
}

function caseRow(one) {
  const at = one.ended_at ?? one.next_at;
  return make("tr", {}, make("td", {}, one.policy), make("td", {}, one.target), make("td", {}, one.user || "–"),
    make(one.state === "failed" || one.state === "left" ? "td.failed" : "td", {}, one.state.replace("_", " ")),
    make("td", {}, at ? `${one.ended_at ? "" : "next "}${stamp(Date.parse(at))}` : "–"), make("td.text", {}, one.note || one.summary));
}

async function look() {
  const found = await ask("/v1/policies").catch((error) => {
    if (error.status === 404) return null;
    throw error;
  });
  document.querySelector("#none").hidden = found !== null;
  button.hidden = found === null || !["operate", "admin"].includes(document.documentElement.dataset.scope);
  if (found === null) return;
  isStopped = found.stopped !== null;
  button.textContent = isStopped ? "start policies" : "stop all policies";
  const open = found.cases.filter((one) => one.ended_at === null).length;
  said.textContent = isStopped ? `Stopped by ${found.stopped.by}: nothing is said or done.` : `${counted(open, "open case")}, ${found.cases.length - open} ended in 30 days`;
  rows("policies", found.policies.map(policyRow));
  rows("cases", found.cases.map(caseRow));
}

const again = live(5000, look);
button.addEventListener("click", async () => {
  button.disabled = true;
  await change("POST", `/v1/policies/${isStopped ? "start" : "stop"}`, {}).catch((error) => { said.textContent = error.message; });
  button.disabled = false;
  again();
});
