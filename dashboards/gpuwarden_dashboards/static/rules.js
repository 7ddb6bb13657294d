// The list of rules: what each finds, how many fire, and its state; the address holds the filter.

import { ask, live } from "./live.js";

const fired = JSON.parse(document.querySelector("#fired").textContent);
const body = document.querySelector("#rules").tBodies[0];
const fields = { q: document.querySelector("#filter"), severity: document.querySelector("#severity"), state: document.querySelector("#state-of"), order: document.querySelector("#order") };
const here = new URL(location.href);
for (const [name, field] of Object.entries(fields)) field.value = here.searchParams.get(name) ?? field.value;
let rules = [];

function row(rule) {
  const line = document.createElement("tr");
  const link = document.createElement("a");
  link.href = `/rules/${rule.rule}`;
  link.textContent = rule.rule;
  line.insertCell().append(link);
  const severity = line.insertCell();
  const level = document.createElement("span");
  level.className = "level";
  level.textContent = rule.severity;
  severity.append(level);
  line.className = rule.severity;
  const what = line.insertCell();
  what.className = "text";
  what.textContent = rule.title || rule.summary;
  for (const [number, path] of [[rule.firing, `/alerts?rule=${rule.rule}`], [fired[rule.rule] ?? 0, `/alerts?state=ended&since=30d&rule=${rule.rule}`]]) {
    const cell = line.insertCell();
    cell.className = "number";
    if (number) {
      const to = document.createElement("a");
      to.href = path;
      to.textContent = number.toLocaleString("en");
      cell.append(to);
    } else cell.textContent = "0";
  }
  const state = line.insertCell();
  state.className = "text";
  state.textContent = (rule.state === "waiting" ? "warming up" : rule.state) + (rule.reason ? `: ${rule.reason}` : rule.pending ? `, ${rule.pending} pending` : "");
  if (["failing", "not judged", "slow"].includes(rule.state)) state.classList.add("failed");
  return line;
}

function show() {
  const words = fields.q.value.trim().toLowerCase().split(/\s+/);
  const meant = rules.filter((rule) =>
    words.every((word) => `${rule.rule} ${rule.title} ${rule.summary}`.toLowerCase().includes(word)) &&
    (!fields.severity.value || rule.severity === fields.severity.value) &&
    (!fields.state.value || (fields.state.value === "firing" ? rule.firing > 0 : rule.state === fields.state.value)));
  const by = { firing: (r) => r.firing, fired: (r) => fired[r.rule] ?? 0, rule: () => 0 }[fields.order.value];
  meant.sort((a, b) => by(b) - by(a) || (fired[b.rule] ?? 0) * (fields.order.value !== "rule") - (fired[a.rule] ?? 0) * (fields.order.value !== "rule") || a.rule.localeCompare(b.rule));
  const focus = document.activeElement?.closest("#rules a")?.href;
  body.replaceChildren(...meant.map(row));
  if (focus) [...body.querySelectorAll("a")].find((one) => one.href === focus)?.focus({ preventScroll: true });
  const states = {};
  for (const rule of rules) states[rule.state] = (states[rule.state] ?? 0) + 1;
  document.querySelector("#counted").textContent = `${meant.length} of ${rules.length} rules; ${Object.entries(states).map(([state, count]) => `${count} ${state === "waiting" ? "warming up" : state}`).join(", ")}`;
}

for (const field of Object.values(fields)) {
  field.addEventListener("input", () => {
    const url = new URL(location.href);
    for (const [name, one] of Object.entries(fields)) {
      if (one.value && one.value !== "firing" || name === "state" && one.value) url.searchParams.set(name, one.value);
      else url.searchParams.delete(name);
    }
    history.replaceState(null, "", url);
    show();
  });
}
document.querySelector("#filters").addEventListener("submit", (event) => event.preventDefault());
live(5000, async () => {
  ({ rules } = await ask("/v1/rules"));
  show();
});
