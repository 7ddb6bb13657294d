// The list of rules: what each finds, how many fire, and its state; the address holds the filter.

import { make } from "./elements.js";
import { ask, live } from "./live.js";

const fired = JSON.parse(document.querySelector("#fired").textContent);
const body = document.querySelector("#rules").tBodies[0];
const fields = { q: document.querySelector("#filter"), severity: document.querySelector("#severity"), state: document.querySelector("#state-of"), order: document.querySelector("#order") };
const here = new URL(location.href);
for (const [name, field] of Object.entries(fields)) field.value = here.searchParams.get(name) ?? field.value;
let rules = [];

function row(rule) {
  const counts = [[rule.firing, `/alerts?rule=${rule.rule}`], [fired[rule.rule] ?? 0, `/alerts?state=ended&since=30d&rule=${rule.rule}`]];
  const state = (rule.state === "waiting" ? "warming up" : rule.state) + (rule.reason ? `: ${rule.reason}` : rule.pending ? `, ${rule.pending} pending` : "");
  return make(`tr.${rule.severity}`, {},
    make("td", {}, make("a", { href: `/rules/${rule.rule}` }, rule.rule)),
    make("td", {}, make("span.level", {}, rule.severity)),
    make("td.text", {}, rule.title || rule.summary),
    counts.map(([number, path]) => make("td.number", {}, number ? make("a", { href: path }, number.toLocaleString("en")) : "0")),
    make(["failing", "not judged", "slow"].includes(rule.state) ? "td.text.failed" : "td.text", {}, state));
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
