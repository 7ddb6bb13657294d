// Fills the lists around the map: totals, what is wrong, what it costs, and the worst nodes.

import { reading } from "./chart.js";
import { counted, duration, make, prose, put, usd } from "./elements.js";
import { sparkline } from "./sparkline.js";

const SILENT_MS = 60e3;
const PAGES = { username: "/users/", job: "/jobs/" };

export function linkTo(kind, name) {
  if (kind === "node") return `/nodes/${encodeURIComponent(name)}`;
  return PAGES[kind] ? PAGES[kind] + encodeURIComponent(name).replaceAll("%2F", "/") : null;
}

/** The sentence that the page begins with: what is wrong, what it costs, what to do first. */
export function showVerdict(box, verdict) {
  box.className = `card verdict ${verdict.level}`.trim();
  const { usd_per_hour: hourly, usd_per_month: monthly, path } = verdict;
  put(box,
    make("p.lead", {}, make("span.word", {}, verdict.word), " ", verdict.sentence),
    hourly || verdict.action ? make("p", {},
      hourly ? [make("b", {}, `${usd(hourly)}/h wasted now`), `, ${usd(monthly)} a month if nothing changes. `] : null,
      verdict.action ? [make("b", {}, "First: "), ...prose(verdict.action), " "] : null,
      verdict.owner ? ["Tell ", make("a", { href: linkTo("username", verdict.owner), "data-key": "verdict owner" }, verdict.owner), ". "] : null,
      path ? make("a", { href: path, "data-key": "verdict" }, path.startsWith("/?") ? "show them" : path === "/collector" ? "the agents" : "evidence, acknowledge, silence") : null) : null);
}

/** "2 nodes: 1 with GPUs, 1 without". */
export function nodesInWords(nodes, withGpus) {
  const without = nodes - withGpus;
  return without > 0 ? `${counted(nodes, "node")}: ${withGpus.toLocaleString("en")} with GPUs, ${without.toLocaleString("en")} without` : counted(nodes, "node");
}

/** Headline numbers, the heaviest first. `past`: the fleet's lines or null; `week`: its waste or null; `unjudged`: why the
 * absence of alerts says nothing now, or null; `onFilter(text)` narrows the map. */
export function showTotals(box, totals, past, week, unjudged, onFilter) {
  const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "");
  const lines = past?.groups[""];
  const hours = past ? Math.round((past.columns * past.step_s) / 3600) : 0;
  const line = (name, title, options) => (lines?.[name].some((value) => value !== null) ? sparkline(lines[name], { ...options, label: `${title} over the last ${hours} hours` }) : null);
  const all = totals.gpus === totals.reporting;
  const isKnown = totals.reporting > 0; // what no GPU reports is not 0
  const number = (value) => value.toLocaleString("en");
  const perHour = totals.usd_per_hour;
  const spent = week?.all;
  const inWeek = !spent ? null : spent.usd === null ? `${spent.wasted_hours.toFixed(1)} h` : usd(spent.wasted_usd ?? 0);
  const ofWeek = !spent ? "" : spent.usd === null ? `of ${counted(Math.round(spent.hours), "GPU hour")}` : `${share(spent.wasted_usd ?? 0, spent.usd)} of ${usd(spent.usd)}`;
  const tiles = [
    ["Wasted now", perHour === null || !isKnown ? "–" : `${usd(totals.usd_wasted_per_hour ?? 0)}/h`, perHour === null ? make("a", { href: "/collector#prices", "data-key": "prices" }, "set prices to see what waste costs") : [isKnown ? `${share(totals.usd_wasted_per_hour ?? 0, perHour)} of ` : "all cost ", make("a", { href: "/collector#prices", "data-key": "prices", title: "where prices come from" }, `${usd(perHour)}/h`), totals.without_price ? `; ${counted(totals.without_price, "GPU")} without a price` : ""], null, null, ""],
    ["Wasted in 7 days", inWeek ?? "–", make("a", { href: "/money", "data-key": "money" }, ofWeek || "money"), null, null, ""],
    ["GPUs reporting", all ? number(totals.gpus) : `${number(totals.reporting)} of ${number(totals.gpus)}`, nodesInWords(totals.nodes, totals.nodes_with_gpus), null, all ? null : 'state="not reporting"', all ? "" : "bad"],
    ["GPUs with an alert", (unjudged || !isKnown) && !totals.alerting ? "–" : number(totals.alerting), unjudged ? "not all judged" : !isKnown ? "none reports" : totals.throttled ? `${number(totals.throttled)} throttled by heat or power` : "none is throttled", null, totals.alerting ? "state=alerting" : null, totals.alerting ? "bad" : ""],
    ["Idle", isKnown ? number(totals.idle) : "–", share(totals.idle, totals.reporting) && `${share(totals.idle, totals.reporting)} of GPUs`, line("idle", "Idle GPUs", {}), totals.idle ? "state=idle" : null, ""],
    ["Utilization", reading(totals.util_percent, "percent"), "mean of GPUs", line("util_percent", "Utilization", { greatest: 100 }), null, ""],
    ["Power", reading(totals.power_watts, "watts"), "drawn by GPUs", line("power_watts", "Power", {}), null, ""],
  ];
  put(box, tiles.map(([title, big, small, image, filter, kind]) => make("li", { class: kind || null },
    filter ? make("span", {}, make("button.plain", { type: "button", "data-key": filter, title: `show ${filter} on the map` }, title)) : make("span", {}, title),
    make("b", {}, big), make("span.soft", {}, small), image)));
  box.onclick = (event) => {
    const filter = event.target.closest("button")?.dataset.key;
    if (filter) onFilter(filter);
  };
}

function tags(record) {
  return [
    record.follows ? `${record.follows.toLocaleString("en")} follow` : null,
    record.muted ? record.muted.split(" ")[0] : null,
    record.stale_since ? "stale" : record.unknown_since ? "unknown" : null,
    record.simulated ? "simulated" : null,
  ].filter(Boolean).map((text) => [" ", make("span.tag", { title: text === record.muted?.split(" ")[0] ? record.muted : null }, text)]);
}

function trouble(record, href, now, isInVerdict) {
  const cost = record.usd_per_hour === null ? null : make("span.cost", {}, make("b", {}, `${usd(record.usd_per_hour)}/h`), `, ${usd(record.usd_so_far)} so far`);
  return make(`li.alert.${record.severity}`, {},
    cost,
    make("a", { href, "data-key": href }, record.summary),
    tags(record).flat(),
    record.remedy && !isInVerdict ? make("div.todo", {}, prose(record.remedy)) : null,
    make("div.soft", {}, make("span.level", {}, record.severity), ` · ${record.place ?? record.node ?? "fleet"}${record.gpu === null || record.gpu === undefined ? "" : ` GPU ${record.gpu}`} · for ${duration(now - record.began_at)}`,
      record.owner ? [" · ", make("a", { href: linkTo("username", record.owner), "data-key": `${href} owner` }, record.owner)] : null));
}

/** Incidents, and alerts in none of them. `unjudged`: why there may be others, or null. */
export function showTrouble(box, { now, incidents, alerts, unjudged, verdict }) {
  const row = (one, href) => trouble(one, href, now, href === verdict.path);
  const isWell = ["good", "info"].includes(verdict.level);
  const rows = [
    ...incidents.map((one) => row(one, `/incidents/${encodeURIComponent(one.id)}`)),
    ...alerts.slice(0, Math.max(0, 5 - incidents.length)).map((one) => row(one, `/alerts/${encodeURIComponent(one.fingerprint)}`)),
  ];
  // Beside a tall map the place below a short list is for the waste.
  box.parentElement.classList.toggle("short", rows.length <= 2);
  const open = incidents[0]?.total ?? 0;
  const muted = open - (incidents[0]?.loud ?? 0);
  const single = alerts[0]?.total ?? 0;
  const more = [
    open ? make("a", { href: "/incidents" }, open > incidents.length ? `all ${counted(open, "incident")}` : "incidents and their history") : null,
    single ? make("a", { href: "/alerts" }, `${counted(single, "alert")} in no incident`) : null,
  ].filter(Boolean);
  put(box,
    make("h2", {}, open ? `${counted(open, "open incident")}${muted ? `, ${muted.toLocaleString("en")} of them acknowledged or silenced` : ""}` : single ? counted(single, "alert") : "What is wrong"),
    unjudged ? make("p.unjudged", { role: "status" }, verdict.sentence === unjudged ? "Nothing is known yet." : unjudged) : null,
    rows.length ? make("ul.plain-list", {}, rows) : unjudged ? null : isWell ? make("p.well", {}, "Nothing is firing.") : make("p.soft", {}, "No alert fires."),
    more.length ? make("p.soft", {}, more[0], more[1] ? [" · ", more[1]] : null) : null);
}

/** Who wasted most this week. */
export function showWaste(box, week) {
  const isPriced = week.all.usd !== null;
  const amount = (one) => (isPriced ? usd(one.wasted_usd ?? 0) : `${one.wasted_hours.toFixed(1)} h`);
  const lists = ["username", "team", "job"].filter((by) => week.top[by].length).map((by) => make("div", {},
    make("h3", {}, make("a", { href: `/money?by=${by}`, "data-key": `by ${by}` }, `${by}s`)),
    make("ol", {}, week.top[by].map((one) => {
      const href = linkTo(by, one.name) ?? `/money?team=${encodeURIComponent(one.name)}&by=username`;
      return make("li", {}, make("a", { href, "data-key": href }, one.name), make("span.number", {}, amount(one), make("span.soft", {}, ` ${(one.most ?? "").replaceAll("_", " ")}`)));
    }))));
  box.hidden = false;
  put(box,
    make("h2", { id: "waste-title" }, "Who wasted most in 7 days"),
    lists.length ? make("div.tops", {}, lists) : make("p.soft", {}, "No known owner wasted anything."),
    make("p", {}, make("a", { href: "/money", "data-key": "all waste" }, "What was spent, wasted and can be saved")));
}

/** States of a node's GPUs in words: 6 busy, 2 idle. */
function gpusInWords(fleet, node) {
  const counts = new Map();
  let [critical, warning] = [0, 0];
  for (let at = fleet.first[node]; at < fleet.first[node + 1]; at += 1) {
    const state = fleet.isSilent(at) ? "not reporting" : fleet.terms.states[fleet.states[at] & 15];
    counts.set(state, (counts.get(state) ?? 0) + 1);
    if (fleet.level(at) === 3) critical += 1;
    else if (fleet.level(at) === 2) warning += 1;
  }
  return [
    fleet.terms.states.filter((state) => counts.has(state)).map((state) => `${counts.get(state)} ${state === "unknown" ? "of unknown load" : state}`).join(", "),
    critical ? make("span.tag.critical", {}, `${critical} critical`) : null,
    warning ? make("span.tag.warning", {}, `${warning} warning`) : null,
  ].filter(Boolean).flatMap((part, at) => (at ? [" ", part] : [part]));
}

/** Rows of nodes, what the map does not say of them: their hosts. `names`: nodes without GPUs, which come last; `details`: what
 * /v1/map/nodes says by name. */
export function showNodes(table, nodes, names, fleet, details, now) {
  const row = (name, about, silence) => {
    const known = details.get(name);
    const number = (value, unit) => make("td.number", {}, known ? reading(value, unit) : "");
    const age = known ? now - known.last_seen_ms : null;
    return make("tr", { "data-node": name },
      make("td", {}, make("a", { href: linkTo("node", name), "data-key": name }, name), known?.simulated ? [" ", make("span.tag", {}, "simulated")] : null),
      make("td", {}, about),
      number(known?.power_watts, "watts"),
      number(known?.cpu_util_percent, "percent"),
      number(known?.cpu_iowait_percent, "percent"),
      make("td.number", {}, known ? `${reading(known.memory_used_bytes, "bytes")}${known.memory_total_bytes ? ` of ${reading(known.memory_total_bytes, "bytes")}` : ""}` : ""),
      make("td", {}, silence ?? (age === null ? "" : age > SILENT_MS ? make("b.bad", {}, `${duration(age)} ago`) : `${duration(age)} ago`)));
  };
  put(table.tBodies[0],
    nodes.map((node) => {
      let [silent, since] = [0, Infinity];
      for (let at = fleet.first[node]; at < fleet.first[node + 1]; at += 1) {
        if (!fleet.isSilent(at)) continue;
        silent += 1;
        since = Math.min(since, fleet.silentSince.get(at) ?? Infinity);
      }
      const isGone = silent === fleet.first[node + 1] - fleet.first[node];
      const silence = isGone ? make("b.bad", {}, `not reporting${since < Infinity ? `, last ${duration(now - since)} ago` : ""}`) : null;
      return row(fleet.nodes[node], gpusInWords(fleet, node), silence);
    }),
    names.map((name) => row(name, "no GPU", null)));
}
