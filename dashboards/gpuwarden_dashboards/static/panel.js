// One panel of a dashboard: what it needs to ask, and how it is drawn.

import { bars, barsOf } from "./bars.js";
import { Chart, reading, readable } from "./chart.js";
import { make, usd } from "./elements.js";
import { lineName, linesOf, measuresOf } from "./lines.js";
import { table } from "./result.js";
import { stamp, zoneName } from "./times.js";

const TABLE_ROWS = 200;
const MAP_CELLS = 2000;
const EVERY_MIN_MS = 10e3;
const EVERY_MAX_MS = 300e3;
const COLUMNS_MAX = 600;

/** Whether an annotation is about what a panel shows: one of a node is so where lines, rows or the SQL have this node.
 * `places`: node and index of the GPU of each line or row; null: not known. */
export function isAbout({ node, gpu }, places, sql = "") {
  if (node === null || sql.includes(`'${node.replaceAll("'", "''")}'`)) return true;
  return places.some((one) => one.node === node && (gpu === null || one.gpu === null || one.gpu === gpu));
}

/** Node and GPU of each row. */
function placesOf(columns, rows) {
  const [node, gpu] = ["node", "gpu"].map((name) => columns.findIndex((one) => one.name === name));
  if (node < 0) return [];
  const found = new Map(rows.map((row) => [`${row[node]} ${row[gpu]}`, { node: row[node], gpu: gpu < 0 ? null : row[gpu] }]));
  return [...found.values()];
}

/** A chart that fills its panel. */
class PanelChart extends Chart {
  places = [];
  sql = "";

  get annotations() {
    return this.shared.annotations.filter((one) => isAbout(one, this.places, this.sql));
  }

  get high() {
    const used = this.caption.offsetHeight + (this.details.firstElementChild?.offsetHeight ?? 0) + 6;
    return Math.max(70, this.element.parentElement.clientHeight - used);
  }
}

/** Whether the SQL of a panel depends on the page's time range. */
export function usesRange(panel) {
  return panel.kind === "chart" || /\$(begin|end)\b/.test(panel.sql);
}

/** How often a panel is asked again while the page follows the time. */
export function everyMs(panel, spanMs) {
  if (!usesRange(panel)) return EVERY_MIN_MS;
  return Math.min(EVERY_MAX_MS, Math.max(panel.kind === "chart" ? EVERY_MIN_MS / 2 : EVERY_MIN_MS, spanMs / 360));
}

/** The level that a value has reached: "critical", "warning" or "". Where critical is below warning, less is worse. */
export function levelOf(value, thresholds) {
  if (value === null || value === undefined || !thresholds) return "";
  const { warning, critical } = thresholds;
  const less = warning !== undefined && critical !== undefined && critical < warning;
  const reached = (limit) => limit !== undefined && (less ? value <= limit : value >= limit);
  return reached(critical) ? "critical" : reached(warning) ? "warning" : "";
}

export class PanelView {
  /** `panel`: its part of the document; `shared`: the span of the page. */
  constructor(panel, shared) {
    this.panel = panel;
    this.shared = shared;
    this.isVisible = false;
    this.askedAt = null;
    this.answeredAt = null;
    this.failedAt = null; // null: the last answer was good
    this.isRefused = false; // the collector refuses what it asks: it is asked apart from others
    this.isGone = false; // answers that come late are not drawn
    this.chart = null;
    this.isSized = false;
    this.heading = make("h2", {}, panel.title);
    this.age = make("span.soft.age");
    this.tools = make("span.tools", { hidden: true });
    this.body = make("div.body", { tabindex: 0, role: "region", "aria-label": panel.title }, make("p.soft", {}, "…"));
    this.element = make("article.panel", { class: `panel kind-${panel.kind}` }, make("header", {}, this.heading, this.age, this.tools), this.body);
    this.resizes = new ResizeObserver(() => this.chart?.draw());
    this.resizes.observe(this.body);
    this.size();
  }

  /** Place it in the grid by its width and height. */
  size() {
    this.element.style.setProperty("grid-column", `span ${this.panel.width ?? 6}`);
    this.element.style.setProperty("grid-row", `span ${this.panel.height ?? 4}`);
  }

  /** Place and metrics of a chart. */
  get wanted() {
    const { metrics, ...place } = Object.fromEntries(new URLSearchParams(this.panel.chart));
    return { place, metrics: metrics.split(",") };
  }

  get columns() {
    return Math.max(50, Math.min(COLUMNS_MAX, this.body.clientWidth - 60));
  }

  isDue(now, spanMs, isFollowing) {
    if (!this.isVisible) return false;
    if (this.askedAt === null) return true;
    if (this.failedAt === null && !isFollowing && usesRange(this.panel)) return false;
    return now - this.askedAt >= everyMs(this.panel, spanMs);
  }

  /** Say when it shows what is older than it should be. */
  tellAge(now, spanMs, isFollowing) {
    const isOld = this.isVisible && this.answeredAt !== null && now - this.answeredAt > 3 * everyMs(this.panel, spanMs) + 10e3;
    const isWanted = this.askedAt > this.answeredAt || this.isDue(now, spanMs, isFollowing);
    this.age.textContent = isOld && isWanted ? `old: of ${stamp(this.answeredAt)} ${zoneName(this.answeredAt)}` : "";
  }

  failed(message) {
    this.forget();
    this.body.replaceChildren(make("p.failed", {}, message));
  }

  forget() {
    this.chart?.close();
    this.chart = null;
  }

  /** For good. */
  close() {
    this.forget();
    this.resizes.disconnect();
    this.isGone = true;
  }

  /** The chart of the panel, made where there is none yet. */
  plot() {
    if (!this.chart) {
      const figure = make("figure");
      this.body.replaceChildren(figure);
      this.chart = new PanelChart(figure, this.shared, this.panel.title);
    }
    return this.chart;
  }

  get limit() {
    const { warning, critical } = this.panel.thresholds ?? {};
    return { threshold: critical ?? warning ?? null, thresholdName: critical === undefined ? "warning" : "critical" };
  }

  /** Draw an answer of `/v1/series`, which may have the lines of other panels too. */
  drawSeries(series) {
    const { place, metrics } = this.wanted;
    const isOne = Boolean(place.gpu_uuid) && !place.gpu_uuid.includes(",");
    const lines = series.lines.filter((line) => metrics.includes(line.metric)).map((line) => ({ ...line, name: lineName(line, metrics, { isOne, node: place.node }) }));
    this.plot().places = lines;
    this.chart.set({ begin: series.begin_ms, step: series.step_ms, columns: series.columns, lines, ...this.limit });
  }

  /** Draw the answer of SQL. */
  drawRows({ columns, rows, truncated }) {
    const { kind, unit = "" } = this.panel;
    if (kind === "line") {
      const found = linesOf(columns, rows);
      if (found) {
        const lines = found.lines.map((line) => ({ ...line, unit, name: found.lines.length === 1 ? "" : line.name }));
        [this.plot().places, this.chart.sql] = [placesOf(columns, rows), this.panel.sql];
        return this.chart.set({ ...found, lines, ...this.limit });
      }
    }
    this.forget();
    const at = measuresOf(columns)[0] ?? null;
    const drawn = rows.length ? this.shape(kind, columns, rows, at, unit) : make("p.soft", {}, "No rows.");
    const cut = truncated ? make("p.soft", {}, `The first ${rows.length.toLocaleString("en")} rows; there are more.`) : null;
    return this.body.replaceChildren(drawn, ...(cut ? [cut] : []));
  }

  shape(kind, columns, rows, at, unit) {
    if (kind === "table") return make("div.plain-scroll", {}, table(columns, rows.slice(0, TABLE_ROWS)));
    if (at === null) return make("p.failed", {}, `The rows have no number, which a panel of kind ${kind} shows: use kind table.`);
    if (kind === "line") {
      const isEarly = columns.some((one) => /^(TIMESTAMP|DATE)/.test(one.type));
      return isEarly ? make("p.soft", {}, "Rows of one time alone: a line needs two.") : make("p.failed", {}, "A line needs a column of time: use another kind.");
    }
    if (kind === "number") return this.number(rows.at(-1)[at], columns[at].name, unit);
    if (kind === "map") return this.map(columns, rows, at, unit);
    const found = barsOf(columns, rows, at);
    return found ? bars(found, columns[at].name, Math.max(240, this.body.clientWidth - 24)) : make("p.failed", {}, "Bars need a column of text and numbers of at least 0: use kind table.");
  }

  number(value, name, unit) {
    const level = levelOf(value, this.panel.thresholds);
    const shown = unit === "usd" ? usd(value) : reading(value, unit);
    return make("p", { class: `figure ${level}` }, make("b", {}, shown), level ? make("span", {}, level) : make("span.soft", {}, name.replace(/_/g, " ")));
  }

  map(columns, rows, at, unit) {
    const values = rows.map((row) => row[at]).filter((value) => value !== null);
    const greatest = unit === "percent" ? 100 : values.reduce((a, b) => Math.max(a, b), 0) || 1;
    const place = (name) => columns.findIndex((one) => one.name === name);
    const [node, gpu] = [place("node"), place("gpu")];
    const names = columns.flatMap((one, number) => (number !== at && (/^VARCHAR/.test(one.type) || number === gpu) ? [number] : []));
    const cells = rows.slice(0, MAP_CELLS).map((row) => {
      const value = row[at];
      const level = levelOf(value, this.panel.thresholds);
      const shade = value === null ? "" : ` u${Math.round(Math.min(1, Math.max(0, value / greatest)) * 10)}`;
      const title = `${names.map((number) => row[number] ?? "–").join(" ")}: ${readable(value, unit)}${level ? `, ${level}` : ""}`;
      const href = node >= 0 && row[node] !== null ? `/nodes/${encodeURIComponent(row[node])}${gpu >= 0 && row[gpu] !== null ? `?gpu=${row[gpu]}` : ""}` : null;
      return make(href ? "a" : "span", { class: `gpu${shade} ${level}`, href, title, "aria-label": title }, value === null ? "–" : String(Math.round(value)));
    });
    return make("div.gpus", {}, cells);
  }
}
