// Draws over time on a canvas, with a cursor that all plots of a page share, zoom and pan by mouse, wheel, touch and
// keys: lines with a band between least and greatest, gaps, strips, marks. Times are milliseconds since the epoch.

import { folded, make } from "./elements.js";
import { plainTable } from "./result.js";
import { clock, fromWall, stamp, wall, zoneName } from "./times.js";

export { clock, stamp };

const HEIGHT = 150;
const STRIP_HEIGHT = 7;
export const LEFT = 64;
export const RIGHT = 8;
export const TOP = 8;
export const BOTTOM = 18;
export const COLOURS = 8;

let frame = 0;
const waiting = new Set();

/** Draw in the next frame; several requests for the same drawing become one. */
function soon(draw) {
  waiting.add(draw);
  if (!frame) {
    frame = requestAnimationFrame(() => {
      frame = 0;
      const drawing = [...waiting];
      waiting.clear();
      for (const one of drawing) one();
    });
  }
}

/** Numbers for people: 12.3k, 4.1 GiB. */
export function readable(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const bytes = unit.startsWith("bytes");
  const base = bytes ? 1024 : 1000;
  const steps = bytes ? [" B", " KiB", " MiB", " GiB", " TiB", " PiB"] : unit === "mhz" ? [""] : ["", "k", "M", "G", "T", "P"];
  let number = value;
  let step = 0;
  while (Math.abs(number) >= base && step < steps.length - 1) {
    number /= base;
    step += 1;
  }
  const digits = Math.abs(number) >= 100 || Number.isInteger(number) ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  const rest = { percent: " %", watts: " W", celsius: " °C", mhz: " MHz" };
  const tail = bytes ? unit.slice(5).replace("_per_second", "/s") : (rest[unit] ?? ` ${unit}`.replace(/_/g, " "));
  return number.toFixed(digits) + steps[step] + tail;
}

/** The same where a number and its unit stand alone: 208 kW, 12 %. */
export function reading(value, unit) {
  return readable(value, unit).replace(/([kMGTP]) W$/, " $1W");
}

/** The colour of a state of a GPU, or of a condition that holds. */
export function stateColour(label, colour) {
  const names = { busy: "--line-0", idle: "--map-silent", unknown: "--map-absent", throttled: "--map-warning", held: "--warning" };
  return colour(names[label] ?? "--info");
}

function ticks(least, greatest, count, unit) {
  const rough = (greatest - least) / count || 1;
  const scale = unit.startsWith("bytes") ? 1024 ** Math.floor(Math.log(rough) / Math.log(1024)) : 1;
  const power = scale * 10 ** Math.floor(Math.log10(rough / scale));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(least / step) * step; at <= greatest + step / 1e6; at += step) found.push(at);
  return found;
}

const TIME_STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 31536000];
const HOUR_MS = 3600e3;

/** Times in a span that are round on the reader's clock, which may change within the span. */
export function roundTimes(begin, end, step) {
  const first = Math.ceil(wall(begin) / step) * step;
  const found = [];
  if (step <= HOUR_MS) {
    // An hour that comes twice has its ticks twice, one that is left out has none.
    for (let at = begin + first - wall(begin); at < end; at += step) found.push(at);
    return found;
  }
  for (let at = first; at < wall(end); at += step) {
    const ms = fromWall(at);
    if (wall(ms) === at && ms >= begin && ms < end) found.push(ms);
  }
  return found;
}

/** About so many round times, at least one. */
export function timeTicks(begin, end, count) {
  const rough = (end - begin) / count / 1000;
  const fitting = TIME_STEPS.filter((seconds) => seconds < rough).length;
  for (let number = Math.min(fitting, TIME_STEPS.length - 1); number >= 0; number -= 1) {
    const found = roundTimes(begin, end, TIME_STEPS[number] * 1000);
    if (found.length) return found;
  }
  return [];
}

/** State that all charts of a page share: the span shown, and the cursor. */
export class Shared extends EventTarget {
  constructor(begin, end) {
    super();
    this.begin = begin;
    this.end = end;
    this.cursor = null;
    this.charts = [];
    this.annotations = [];
  }

  point(ms) {
    if (ms === this.cursor) return;
    this.cursor = ms;
    for (const chart of this.charts) chart.drawOverlay();
    this.dispatchEvent(new Event("cursor"));
  }

  /** Ask for another span; the listener reads its data and calls `set` of the charts. */
  show(begin, end) {
    const length = Math.max(10e3, end - begin);
    const middle = (begin + end) / 2;
    this.begin = Math.round(middle - length / 2);
    this.end = Math.round(middle + length / 2);
    this.dispatchEvent(new Event("span"));
  }
}

/** Anything drawn over the shared span. `element` is a figure; it gets two canvases, a caption and a table.
 * Others extend it: `set` gives data with `begin`, `step` and `columns` and draws, `high` is the height,
 * `drawNow(pen, colour)` draws, `entries(column)` is the caption, `rows()` the table, heading first. */
export class Plot {
  constructor(element, shared, title) {
    this.element = element;
    this.shared = shared;
    this.title = title;
    this.data = null;
    this.dragFrom = null;
    [this.base, this.overlay] = [make("canvas"), make("canvas")];
    this.box = make("div.plot", { tabindex: 0, role: "img", "aria-label": `${title}: loading` }, this.base, this.overlay);
    this.caption = make("figcaption");
    this.details = folded("as a table");
    element.append(this.caption, this.box, this.details);
    this.details.addEventListener("toggle", () => this.fillTable());
    this.listen();
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(this.box);
    shared.charts.push(this);
    this.listeners = new AbortController();
    const { signal } = this.listeners;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal });
    for (const name of ["themechange", "zonechange"]) addEventListener(name, () => this.draw(), { signal });
  }

  /** For good: the listeners of the window would keep its canvases. */
  close() {
    const at = this.shared.charts.indexOf(this);
    if (at >= 0) this.shared.charts.splice(at, 1);
    this.resizes.disconnect();
    this.listeners.abort();
  }

  x(ms) {
    const { begin, end } = this.shared;
    return LEFT + ((ms - begin) / (end - begin)) * (this.width - LEFT - RIGHT);
  }

  time(x) {
    const { begin, end } = this.shared;
    return begin + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (end - begin);
  }

  size() {
    const ratio = devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.high;
    this.box.style.setProperty("height", `${this.height}px`);
    for (const canvas of [this.base, this.overlay]) {
      const wide = Math.round(this.width * ratio);
      const high = Math.round(this.height * ratio);
      if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    }
    return ratio;
  }

  draw() {
    if (!this.data) return;
    soon((this.drawing ??= () => this.drawBase()));
    this.drawOverlay();
    if (this.details.open) this.fillTable();
  }

  drawBase() {
    const ratio = this.size();
    if (!this.width) return;
    const pen = this.base.getContext("2d");
    const style = getComputedStyle(this.box);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "11px system-ui, sans-serif";
    this.drawNow(pen, (name) => style.getPropertyValue(name));
    this.drawAnnotations(pen, style.getPropertyValue("--accent"));
    this.drawCaption();
  }

  /** What people wrote onto the time axis: lines, a shade for a time, and on charts the text where there is room. */
  drawAnnotations(pen, colour) {
    const right = this.width - RIGHT;
    let free = LEFT;
    pen.save();
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [colour, colour, 1];
    pen.setLineDash([2, 3]);
    [pen.textAlign, pen.textBaseline] = ["left", "alphabetic"];
    for (const one of this.shared.annotations) {
      const [from, until] = [this.x(one.begin_ms), this.x(one.end_ms ?? one.begin_ms)];
      if (until < LEFT || from > right) continue;
      pen.globalAlpha = 0.1;
      if (one.end_ms) pen.fillRect(Math.max(LEFT, from), TOP, Math.min(right, until) - Math.max(LEFT, from), this.height - TOP - BOTTOM);
      pen.globalAlpha = 1;
      const x = Math.round(from) + 0.5;
      if (x < LEFT) continue;
      pen.beginPath();
      pen.moveTo(x, TOP);
      pen.lineTo(x, this.height - BOTTOM);
      pen.stroke();
      if (!(this instanceof Chart) || x < free || right - x < 40) continue;
      let text = one.text;
      while (text.length > 2 && pen.measureText(text).width > Math.min(160, right - x - 4)) text = `${text.replace(/…$/, "").slice(0, -1)}…`;
      pen.fillText(text, x + 3, TOP + 20);
      free = x + pen.measureText(text).width + 9;
    }
    pen.restore();
  }

  /** Annotations near the cursor, for the caption. */
  annotated() {
    const { annotations, cursor, begin, end } = this.shared;
    if (cursor === null || !this.width) return [];
    const near = (4 * (end - begin)) / this.width;
    const there = annotations.filter((one) => one.begin_ms - near < cursor && cursor < (one.end_ms ?? one.begin_ms) + near);
    return there.slice(-3).map((one) => [one.text, "mark annotation"]);
  }

  /** Hours and dates below; `draw` what is clipped to the span. */
  drawTimes(pen, colour, draw) {
    const { begin, end } = this.shared;
    pen.fillStyle = colour("--soft");
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    for (const at of timeTicks(begin, end, Math.max(2, this.width / 110))) {
      const x = this.x(at);
      if (x > LEFT + 15 && x < this.width - 20) pen.fillText(clock(at, end - begin), x, this.height - 4);
    }
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.width - LEFT - RIGHT, this.height);
    pen.clip();
    draw();
    pen.restore();
  }

  /** Keep elements that exist, so that a button keeps the focus. */
  drawCaption() {
    const entries = [[this.title, ""], ...this.entries(this.columnAtCursor()), ...this.annotated()];
    entries.forEach(([text, classes, isShown], number) => {
      const tag = isShown !== undefined ? "button" : number ? "span" : "b";
      let entry = this.caption.children[number];
      if (entry?.localName !== tag) {
        const made = document.createElement(tag);
        if (entry) entry.replaceWith(made);
        else this.caption.append(made);
        entry = made;
      }
      if (entry.textContent !== text) entry.textContent = text;
      entry.className = classes;
      if (tag !== "button") return;
      [entry.type, entry.title] = ["button", "Hide or show; with Shift: this one alone"];
      entry.setAttribute("aria-pressed", isShown);
    });
    while (this.caption.children.length > entries.length) this.caption.lastChild.remove();
  }

  columnAtCursor() {
    const { cursor } = this.shared;
    if (cursor === null || !this.data) return null;
    const column = Math.floor((cursor - this.data.begin) / this.data.step);
    return column >= 0 && column < this.data.columns ? column : null;
  }

  drawOverlay() {
    if (this.data) soon((this.overlaying ??= () => this.overlayNow()));
  }

  overlayNow() {
    if (!this.width) return;
    const ratio = devicePixelRatio || 1;
    const pen = this.overlay.getContext("2d");
    const style = getComputedStyle(this.box);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (this.dragFrom !== null && this.dragTo !== null) {
      pen.fillStyle = style.getPropertyValue("--select");
      pen.fillRect(Math.min(this.dragFrom, this.dragTo), 0, Math.abs(this.dragTo - this.dragFrom), this.height);
    }
    if (this.shared.cursor !== null) {
      const x = Math.round(this.x(this.shared.cursor)) + 0.5;
      if (x >= LEFT && x <= this.width - RIGHT) {
        pen.strokeStyle = style.getPropertyValue("--ink");
        pen.globalAlpha = 0.6;
        pen.beginPath();
        pen.moveTo(x, TOP);
        pen.lineTo(x, this.height - BOTTOM);
        pen.stroke();
        pen.globalAlpha = 1;
        pen.fillStyle = style.getPropertyValue("--ink");
        pen.font = "11px system-ui, sans-serif";
        pen.textAlign = x > this.width / 2 ? "right" : "left";
        pen.fillText(clock(this.shared.cursor, 1), x + (x > this.width / 2 ? -4 : 4), TOP + 9);
      }
    }
    this.drawCaption();
  }

  listen() {
    const where = (event) => event.clientX - this.box.getBoundingClientRect().left;
    this.box.addEventListener("pointermove", (event) => {
      const x = where(event);
      if (this.dragFrom !== null) this.dragTo = x;
      this.shared.point(this.time(Math.min(Math.max(x, LEFT), this.width - RIGHT)));
    });
    this.box.addEventListener("pointerleave", () => this.shared.point(null));
    this.box.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button) return;
      this.dragFrom = where(event);
      this.dragTo = null;
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointerup", (event) => {
      const [from, to] = [this.dragFrom, where(event)];
      this.dragFrom = this.dragTo = null;
      if (from === null || Math.abs(to - from) < 5) return this.drawOverlay();
      if (event.shiftKey) {
        const moved = this.time(from) - this.time(to);
        this.shared.show(this.shared.begin + moved, this.shared.end + moved);
      } else this.shared.show(this.time(Math.min(from, to)), this.time(Math.max(from, to)));
    });
    this.box.addEventListener("dblclick", () => this.zoom(3, 0.5));
    this.box.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.5 : 1 / 1.5, (where(event) - LEFT) / (this.width - LEFT - RIGHT));
      },
      { passive: false },
    );
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  zoom(factor, share) {
    const { begin, end } = this.shared;
    const around = begin + (end - begin) * share;
    this.shared.show(around - (around - begin) * factor, around + (end - around) * factor);
  }

  key(event) {
    const { begin, end, cursor } = this.shared;
    const length = end - begin;
    const step = this.data?.step ?? length / 100;
    const acts = {
      "+": () => this.zoom(0.5, 0.5),
      "=": () => this.zoom(0.5, 0.5),
      "-": () => this.zoom(2, 0.5),
      PageUp: () => this.shared.show(begin - length / 2, end - length / 2),
      PageDown: () => this.shared.show(begin + length / 2, end + length / 2),
      ArrowLeft: () => this.shared.point(Math.max(begin, (cursor ?? end) - step)),
      ArrowRight: () => this.shared.point(Math.min(end - 1, (cursor ?? begin) + step)),
      Escape: () => this.shared.point(null),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  }

  fillTable() {
    this.details.querySelector("table")?.remove();
    if (!this.details.open || !this.data) return;
    const [heading, ...rows] = this.rows();
    this.details.append(plainTable(heading, rows));
  }
}

/** The y axis of values. */
export function rangeOf(values, unit) {
  let least = values.length ? Math.min(...extremes(values)) : 0;
  let greatest = values.length ? Math.max(...extremes(values)) : 1;
  if (unit === "percent") [least, greatest] = [0, Math.max(100, greatest)];
  else if (least >= 0 && (least < greatest * 0.6 || greatest - least < greatest * 0.1)) least = 0;
  if (least === greatest) greatest = least + 1;
  return { least, greatest, unit };
}

/** Lines. */
export class Chart extends Plot {
  constructor(element, shared, title) {
    super(element, shared, title);
    this.hidden = new Set();
    this.caption.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.choose(this.data.lines[[...this.caption.querySelectorAll("button")].indexOf(button)].name, event.shiftKey);
    });
  }

  /** Hide or show a line; `alone`: hide all others, or show them again. */
  choose(name, alone) {
    const others = this.data.lines.map((line) => line.name).filter((one) => one !== name);
    if (alone) this.hidden = new Set(others.every((one) => this.hidden.has(one)) ? [] : others);
    else if (!this.hidden.delete(name)) this.hidden.add(name);
    this.set(this.data);
  }

  get shown() {
    const shown = this.data.lines.filter((line) => !this.hidden.has(line.name));
    return shown.length ? shown : this.data.lines;
  }

  /** `lines`: {name, unit, least, mean, greatest}; `strips`: {name, held} or {name, runs} of [column, columns, label];
   * `marks`: {begin_ms, end_ms, severity, text}; `compare`: as lines, with `kind` band or dash, drawn behind them. */
  set({ begin, step, columns, lines, strips = [], marks = [], compare = [], threshold = null, thresholdName = "threshold" }) {
    this.data = { begin, step, columns, lines, strips, marks, compare, threshold, thresholdName };
    const unit = lines[0]?.unit ?? "";
    const values = [...this.shown, ...compare].flatMap((line) => [...line.least, ...line.greatest]).filter((value) => value !== null);
    if (threshold !== null) values.push(threshold);
    this.range = rangeOf(values, unit);
    const shown = this.shown.filter((line) => line.mean.some((value) => value !== null));
    this.box.setAttribute(
      "aria-label",
      shown.length
        ? `${this.title}${threshold === null ? "" : `, ${thresholdName} ${readable(threshold, unit)}`}: ${shown.map((line) => `${line.name} from ${readable(few(line.least, Math.min), unit)} to ${readable(few(line.greatest, Math.max), unit)}`).join("; ")}`
        : `${this.title}: no readings in this span`,
    );
    this.draw();
  }

  y(value) {
    const { least, greatest } = this.range;
    return this.height - this.foot - ((value - least) / (greatest - least)) * (this.height - TOP - this.foot);
  }

  get foot() {
    return BOTTOM + (this.data ? this.data.strips.length * (STRIP_HEIGHT + 2) : 0);
  }

  get high() {
    return HEIGHT + this.foot - BOTTOM;
  }

  drawNow(pen, colour) {
    this.drawAxes(pen, colour);
    this.drawTimes(pen, colour, () => {
      this.drawMarks(pen, colour);
      for (const line of this.data.compare) this.drawCompared(pen, line, colour);
      const { shown } = this;
      this.data.lines.forEach((line, number) => {
        if (shown.includes(line)) this.drawLine(pen, line, colour(`--line-${number % COLOURS}`));
      });
      this.drawStrips(pen, colour);
      if (this.data.threshold === null) return;
      pen.strokeStyle = colour("--critical");
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(LEFT, this.y(this.data.threshold));
      pen.lineTo(this.width, this.y(this.data.threshold));
      pen.stroke();
    });
  }

  /** Whether nothing has a value here: an axis would be one of made-up numbers. */
  get isEmpty() {
    return this.data.threshold === null && [...this.shown, ...this.data.compare].every((line) => (line.mean ?? line.points.value).every((value) => value === null));
  }

  drawAxes(pen, colour) {
    const { least, greatest, unit } = this.range;
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--soft");
    pen.lineWidth = 1;
    if (this.isEmpty) {
      [pen.textAlign, pen.textBaseline] = ["center", "middle"];
      pen.fillText("no readings in this span", LEFT + (this.width - LEFT - RIGHT) / 2, this.y((least + greatest) / 2));
      return;
    }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(least, greatest, 5, unit)) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(this.width - RIGHT, y);
      pen.stroke();
      pen.fillText(readable(value, unit), LEFT - 5, y);
    }
  }

  /** Alerts as bars above the lines, as long as they held; events as ticks there. */
  drawMarks(pen, colour) {
    for (const mark of this.data.marks) {
      const x = this.x(mark.begin_ms);
      pen.fillStyle = colour(`--${mark.severity}`) || colour("--soft");
      if (mark.kind === "alert") pen.fillRect(x, 0, Math.max(2, this.x(mark.end_ms ?? this.shared.end) - x), 3);
      else pen.fillRect(x - 0.5, 0, 1.5, TOP);
    }
  }

  /** Comparisons: another week as a dashed line, other GPUs as a band. */
  drawCompared(pen, line, colour) {
    pen.save();
    pen.setLineDash(line.kind === "dash" ? [5, 4] : []);
    pen.globalAlpha = 0.75;
    this.drawLine(pen, line, colour("--soft"), line.kind === "band");
    pen.restore();
  }

  drawLine(pen, line, colour, bandOnly = false) {
    const { begin, step } = line.step ? line : this.data;
    const at = (column) => this.x(begin + (column + 0.5) * step);
    pen.fillStyle = colour;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.4;
    // Readings may be further apart than columns: those at the usual distance belong together.
    const joined = bridged(line.mean);
    for (const run of joined) {
      pen.globalAlpha = 0.18;
      pen.beginPath();
      run.forEach((column, number) => pen[number ? "lineTo" : "moveTo"](at(column), this.y(line.greatest[column])));
      for (const column of run.toReversed?.() ?? [...run].reverse()) pen.lineTo(at(column), this.y(line.least[column]));
      pen.fill();
      pen.globalAlpha = 1;
      if (bandOnly) continue;
      pen.beginPath();
      if (run.length === 1) pen.arc(at(run[0]), this.y(line.mean[run[0]]), 1.5, 0, 7);
      run.forEach((column, number) => pen[number ? "lineTo" : "moveTo"](at(column), this.y(line.mean[column])));
      pen.stroke();
    }
  }

  drawStrips(pen, colour) {
    const { begin, step, strips } = this.data;
    strips.forEach((strip, number) => {
      const y = this.height - this.foot + BOTTOM - 13 + number * (STRIP_HEIGHT + 2);
      pen.fillStyle = colour("--line");
      pen.fillRect(LEFT, y, this.width, STRIP_HEIGHT);
      const runs = strip.runs ?? strip.held.map((column) => [column, 1, "held"]);
      for (const [first, count, label] of runs) {
        const x = this.x(begin + first * step);
        pen.fillStyle = stateColour(label, colour);
        pen.fillRect(x, y, Math.max(1, this.x(begin + (first + count) * step) - x) + 0.3, STRIP_HEIGHT);
      }
    });
  }

  entries(at) {
    const { lines, strips, compare, marks } = this.data;
    const of = (line, column) => `${line.name} ${readable(line.mean[column], line.unit)}`;
    const spread = (line) => at !== null && line.mean[at] !== null && line.least[at] !== line.greatest[at];
    const { shown } = this;
    const found = lines.slice(0, 16).map((line, number) => {
      const value = at === null ? `${line.name} ${readable(last(line.mean), line.unit)}` : of(line, at);
      const range = spread(line) ? ` (${readable(line.least[at], line.unit)} to ${readable(line.greatest[at], line.unit)})` : "";
      const whole = at === null && lines.length <= 2 ? inAll(line) : "";
      return [value + range + whole, `legend line-${number % COLOURS}`, lines.length > 1 ? shown.includes(line) : undefined];
    });
    if (lines.length > 16) found.push([`and ${lines.length - 16} more`, "soft"]);
    for (const line of compare) {
      const { unit } = this.range;
      const column = at === null ? null : Math.floor((this.shared.cursor - line.begin) / line.step);
      const value = column === null ? "" : line.kind === "band" ? ` ${readable(line.least[column], unit)} to ${readable(line.greatest[column], unit)}` : ` ${readable(line.mean[column], unit)}`;
      found.push([line.name + value, `legend ${line.kind}`]);
    }
    for (const strip of strips) {
      const run = at === null ? null : (strip.runs ?? strip.held.map((column) => [column, 1, "held"])).find(([first, count]) => at >= first && at < first + count);
      found.push([strip.runs ? `${strip.name}${run ? `: ${run[2]}` : ""}` : strip.name, run && !strip.runs ? "legend strip held" : "legend strip"]);
    }
    if (this.data.threshold !== null)
      found.push([`${this.data.thresholdName} ${readable(this.data.threshold, this.range.unit)}`, "legend threshold"]);
    if (at !== null) {
      const near = (4 * (this.shared.end - this.shared.begin)) / this.width;
      const { cursor } = this.shared;
      for (const mark of marks.filter((one) => one.begin_ms - near < cursor && cursor < (one.end_ms ?? Infinity) + near).slice(-3))
        found.push([mark.text ?? mark.name, `mark ${mark.severity}`]);
    }
    return found;
  }

  rows() {
    const { begin, step, columns, lines, compare } = this.data;
    const all = [...lines, ...compare.map((line) => ({ ...line, unit: this.range.unit }))];
    const every = Math.ceil(columns / 60);
    const rows = [[`time (${zoneName(begin)})`, ...all.map((line) => line.name || this.title)]];
    for (let column = 0; column < columns; column += every) {
      const row = [stamp(begin + column * step)];
      for (const line of all) {
        const values = line.mean.slice(column, column + every).filter((value) => value !== null);
        const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
        row.push(readable(mean, line.unit));
      }
      rows.push(row);
    }
    return rows;
  }
}

function* chunks(values) {
  for (let at = 0; at < values.length; at += 10000) yield values.slice(at, at + 10000);
}

function extremes(values) {
  return [...chunks(values)].flatMap((part) => [Math.min(...part), Math.max(...part)]);
}

/** Summary of a line over the whole span. */
function inAll(line) {
  const means = line.mean.filter((value) => value !== null);
  const [least, greatest] = [few(line.least, Math.min), few(line.greatest, Math.max)];
  if (least === greatest) return "";
  const mean = means.reduce((sum, value) => sum + value, 0) / means.length;
  return ` (mean ${readable(mean, line.unit)}, ${readable(least, line.unit)} to ${readable(greatest, line.unit)})`;
}

function few(values, choose) {
  const there = values.filter((value) => value !== null);
  return there.length ? there.reduce((a, b) => choose(a, b)) : null;
}

function last(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return null;
}

/** Lists of columns that are drawn as one line: readings at the usual distance. */
export function bridged(values) {
  const there = [];
  values.forEach((value, column) => {
    if (value !== null) there.push(column);
  });
  const apart = there.slice(1).map((column, number) => column - there[number]);
  const usual = apart.length ? [...apart].sort((a, b) => a - b)[Math.floor(apart.length / 2)] : 1;
  const runs = [];
  there.forEach((column, number) => {
    if (number && apart[number - 1] <= 2 * usual) runs.at(-1).push(column);
    else runs.push([column]);
  });
  return runs;
}
