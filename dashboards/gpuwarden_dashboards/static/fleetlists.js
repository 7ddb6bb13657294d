// Fills the lists around the map: totals, what is wrong, what it costs, and the worst nodes.

import { reading } from "./chart.js";
import { counted, duration, make, put, usd } from "./elements.js";
import { sparkline } from "./sparkline.js";

const PAGES = { user: "/users/", job: "/jobs/" };

export function linkTo(kind, name) {
  if (kind === "node") return `/nodes/${encodeURIComponent(name)}`;
  return PAGES[kind] ? PAGES[kind] + encodeURIComponent(name).replaceAll("%2F", "/") : null;
}

/** Tiles. `past`: the fleet's lines or null; `unjudged`: why the absence of alerts says nothing now, or null; `onFilter(text)`
 * narrows the map. */
export function showTotals(box, totals, past, unjudged, onFilter) {
  const share = (count) => (totals.reporting ? `${Math.round((100 * count) / totals.reporting)} %` : "");
  const lines = past?.groups[""];
  const hours = past ? Math.round((past.columns * past.step_s) / 3600) : 0;
  const line = (name, title, options) => (lines?.[name].some((value) => value !== null) ? sparkline(lines[name], { ...options, label: `${title} over the last ${hours} hours` }) : null);
  const all = totals.gpus === totals.reporting;
  const isPriced = totals.usd_per_hour !== null;
  const tiles = [
    [all ? totals.gpus.toLocaleString("en") : `${totals.reporting.toLocaleString("en")} of ${totals.gpus.toLocaleString("en")}`, `GPUs reporting, ${counted(totals.nodes, "node")}`, null, all ? null : 'state="not reporting"', all ? "" : "bad"],
    [reading(totals.util_percent, "percent"), "utilization, mean", line("util_percent", "Utilization", { greatest: 100 })],
    [totals.idle.toLocaleString("en"), `idle, ${share(totals.idle)}`, line("idle", "Idle GPUs", {}), "state=idle"],
    [totals.throttled.toLocaleString("en"), "throttled by heat or power", null, "state=throttled", totals.throttled ? "bad" : ""],
    [unjudged && !totals.alerting ? "–" : totals.alerting.toLocaleString("en"), unjudged ? "GPUs with an alert: not all judged" : "GPUs with an alert", null, "state=alerting", totals.alerting || unjudged ? "bad" : ""],
    [reading(totals.power_watts, "watts"), "drawn by GPUs", line("power_watts", "Power", {})],
    [isPriced ? `${usd(totals.usd_wasted_per_hour ?? 0)}/h` : "no prices", isPriced ? `wasted now, of ${usd(totals.usd_per_hour)}/h` : "set them to see what waste costs", null, null],
  ];
  put(box, tiles.map(([big, small, image, filter, kind]) => {
    const item = make("li", { class: kind || null }, make("b", {}, big), filter ? make("button.plain", { type: "button", "data-key": filter, title: `show ${filter} on the map` }, small) : make("span", {}, small), image);
    return item;
  }));
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

function trouble(record, href, now) {
  const cost = record.usd_per_hour === null ? null : make("span.cost", {}, make("b", {}, `${usd(record.usd_per_hour)}/h`), `, ${usd(record.usd_so_far)} so far`);
  return make(`li.alert.${record.severity}`, {},
    cost,
    make("a", { href, "data-key": href }, record.summary),
    tags(record).flat(),
    make("div.soft", {}, make("span.level", {}, record.severity), ` · ${record.place ?? record.node ?? "fleet"}${record.gpu === null || record.gpu === undefined ? "" : ` GPU ${record.gpu}`} · for ${duration(now - record.began_at)}`));
}

/** Incidents, and alerts in none of them. `unjudged`: why there may be others, or null. */
export function showTrouble(box, { now, incidents, alerts, unjudged }) {
  const rows = [
    ...incidents.map((one) => trouble(one, `/incidents/${encodeURIComponent(one.id)}`, now)),
    ...alerts.slice(0, Math.max(0, 5 - incidents.length)).map((one) => trouble(one, `/alerts/${encodeURIComponent(one.fingerprint)}`, now)),
  ];
  const open = incidents[0]?.total ?? 0;
  const single = alerts[0]?.total ?? 0;
  const more = [
    open ? make("a", { href: "/incidents" }, open > incidents.length ? `all ${counted(open, "incident")}` : "incidents and their history") : null,
    single ? make("a", { href: "/alerts" }, `${counted(single, "alert")} in no incident`) : null,
  ].filter(Boolean);
  put(box,
    make("h2", {}, open ? `${counted(open, "open incident")}` : single ? counted(single, "alert") : "What is wrong"),
    unjudged ? make("p.unjudged", { role: "status" }, unjudged) : null,
    rows.length ? make("ul.plain-list", {}, rows) : unjudged ? null : make("p.well", {}, "Nothing is firing."),
    more.length ? make("p.soft", {}, more[0], more[1] ? [" · ", more[1]] : null) : null);
}

/** The cost of waste this week, by owner. */
export function showWaste(box, week, totals) {
  const isPriced = week.all.usd !== null;
  const amount = (one) => (isPriced ? usd(one.wasted_usd ?? 0) : `${one.wasted_hours.toFixed(1)} h`);
  const share = isPriced ? week.all.wasted_usd / week.all.usd : week.all.wasted_hours / week.all.hours;
  const lists = ["user", "team", "job"].filter((by) => week.top[by].length).map((by) => make("div", {},
    make("h3", {}, `${by}s`),
    make("ol", {}, week.top[by].map((one) => {
      const href = linkTo(by, one.name) ?? `/?filter=${encodeURIComponent(`${by}="${one.name}"`)}`;
      return make("li", {}, make("a", { href, "data-key": href }, one.name), make("span.number", {}, amount(one), make("span.soft", {}, ` ${(one.most ?? "").replace("_", " ")}`)));
    }))));
  put(box,
    make("h2", {}, "Wasted this week"),
    make("p", {},
      make("b.big", {}, amount(week.all)),
      Number.isFinite(share) ? ` of ${isPriced ? usd(week.all.usd) : `${week.all.hours.toFixed(0)} GPU hours`}, ${Math.round(100 * share)} %` : "",
      isPriced && totals?.usd_wasted_per_hour ? make("span.soft", {}, `; ${usd(totals.usd_wasted_per_hour)}/h now`) : null,
      " ", make("a", { href: "/money" }, "all")),
    lists.length ? make("div.tops", {}, lists) : make("p.soft", {}, "No known owner wasted anything."));
}

/** Rows of nodes. `details`: what /v1/map/nodes says by name; `text(gpu)`: the reading in words. */
export function showNodes(table, nodes, fleet, details, { text, shade, now }) {
  const rows = nodes.map((node) => {
    const name = fleet.nodes[node];
    const known = details.get(name);
    const cells = [];
    let silent = 0;
    let since = Infinity;
    for (let at = fleet.first[node]; at < fleet.first[node + 1]; at += 1) {
      const level = fleet.level(at);
      const isSilent = fleet.isSilent(at);
      if (isSilent) {
        silent += 1;
        since = Math.min(since, fleet.silentSince.get(at) ?? Infinity);
      }
      cells.push(make(`a.gpu${isSilent ? ".silent" : ""}${level === 3 ? ".critical" : level === 2 ? ".warning" : ""}${isSilent ? "" : shade(at)}`,
        { href: `${linkTo("node", name)}?gpu=${fleet.gpuOf[at]}`, "data-key": `${name} ${fleet.gpuOf[at]}`, title: text(at, true) }, isSilent ? "–" : text(at, false)));
    }
    const of = cells.length;
    const state = silent
      ? make("b.bad", {}, silent === of ? `not reporting${since < Infinity ? `, last ${duration(now - since)} ago` : ""}` : `${of - silent} of ${of} GPUs reporting`)
      : known ? `${duration(now - known.last_seen_ms)} ago` : "";
    const number = (value, unit) => make("td.number", {}, known ? reading(value, unit) : "");
    return make("tr", { "data-node": name },
      make("td", {}, make("a", { href: linkTo("node", name), "data-key": name }, name), known?.simulated ? [" ", make("span.tag", {}, "simulated")] : null),
      make("td", {}, make("div.gpus", {}, cells)),
      number(known?.power_watts, "watts"),
      number(known?.cpu_util_percent, "percent"),
      number(known?.cpu_iowait_percent, "percent"),
      make("td.number", {}, known ? `${reading(known.memory_used_bytes, "bytes")}${known.memory_total_bytes ? ` of ${reading(known.memory_total_bytes, "bytes")}` : ""}` : ""),
      make("td", {}, state));
  });
  put(table.tBodies[0], rows);
}
