// Charts of five minutes that move: rows of every second come every two seconds in one request for all charts, and the
// axis follows at a distance, so that a curve ends at the edge and does not jump.
//
// A chart is drawn when rows came, on a canvas that is wider than the chart; between, only the canvas moves, by whole
// pixels of the screen. Nothing is asked or drawn while the page is hidden or scrolled away, or after half an hour
// without a key, a pointer or scrolling.

import { BOTTOM, COLOURS, Chart, LEFT, RIGHT, Shared, TOP, rangeOf, readable, timeTicks } from "./chart.js";
import { make } from "./elements.js";
import { ask } from "./live.js";
import { clock, stamp, zoneName } from "./times.js";

export const GPUS_MAX = 10;
export const CHARTS_MAX = 6;
const WINDOW_MS = 300e3;
const EVERY_MS = 2000;
const WAIT_MAX_MS = 32e3;
const WHOLE_MS = 30e3;
const IDLE_MS = 30 * 60e3;
const RESERVE_MS = 20e3;
const BATCH_MS = 5e3;
const BEHIND_MAX_MS = 60e3;
const STEP_MIN_MS = 100;

/** Rows of one thing by time, at most the window and what is behind it. */
export class Points {
  constructor() {
    this.at = [];
    this.value = [];
  }

  /** What was since `begin` is replaced; what is older than the window is forgotten. */
  put(begin, at, values) {
    let from = this.at.length;
    while (from && this.at[from - 1] >= begin) from -= 1;
    this.at.length = this.value.length = from;
    at.forEach((ms, number) => {
      this.at.push(ms);
      this.value.push(values[number]);
    });
    const oldest = (this.at.at(-1) ?? 0) - WINDOW_MS - BEHIND_MAX_MS;
    const old = this.at.findIndex((ms) => ms >= oldest);
    if (old > 0) {
      this.at.splice(0, old);
      this.value.splice(0, old);
    }
  }

  /** The newest value at or before a time, null if the reading is missing or long ago. */
  near(ms, usual) {
    let found = this.at.length - 1;
    while (found >= 0 && this.at[found] > ms) found -= 1;
    return found < 0 || ms - this.at[found] > 2 * usual ? null : this.value[found];
  }
}

/** The distance at which readings usually come: the median. */
function usualGap(at) {
  const gaps = at.slice(1).map((ms, number) => ms - at[number]).sort((a, b) => a - b);
  return gaps.length ? gaps[Math.floor(gaps.length / 2)] : 1000;
}

class MovingChart extends Chart {
  constructor(element, shared, title) {
    super(element, shared, title);
    this.moving = make("canvas");
    this.base.after(make("div.slide", {}, this.moving));
    this.drawn = 0;
  }

  /** `lines`: {name, unit, points}. */
  set({ lines }) {
    this.data = { lines, strips: [], marks: [], compare: [], threshold: null, step: 1000 };
    const unit = lines[0]?.unit ?? "";
    for (const line of lines) {
      line.usual = usualGap(line.points.at);
      line.gap = 2.5 * line.usual;
    }
    const values = this.shown.flatMap((line) => line.points.value).filter((value) => value !== null);
    this.range = rangeOf(values, unit);
    const said = lines.length ? this.shown.map((line) => `${line.name} ${readable(this.current(line), unit)}`.trim()).join("; ") : "no readings";
    this.box.setAttribute("aria-label", `${this.title}, live: ${said}`);
    this.draw();
  }

  /** The newest value, null if the line ended before the edge. */
  current({ points, gap }) {
    return points.at.at(-1) >= this.shared.end - 2 * gap ? points.value.at(-1) : null;
  }

  columnAtCursor() {
    return this.shared.cursor;
  }

  /** The axis stands still; what moves is drawn on its own canvas. */
  drawNow(pen, colour) {
    this.drawAxes(pen, colour);
    this.drawMoving(colour);
  }

  drawMoving(colour) {
    const ratio = devicePixelRatio || 1;
    const { begin } = this.shared;
    const visible = this.width - LEFT - RIGHT;
    this.pixelsPerMs = visible / WINDOW_MS;
    const width = visible + RESERVE_MS * this.pixelsPerMs;
    const [wide, high] = [Math.round(width * ratio), Math.round(this.height * ratio)];
    if (this.moving.width !== wide || this.moving.height !== high) {
      [this.moving.width, this.moving.height] = [wide, high];
      this.moving.style.setProperty("width", `${wide / ratio}px`);
      this.moving.style.setProperty("height", `${high / ratio}px`);
    }
    this.origin = begin;
    const pen = this.moving.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colour("--soft");
    pen.textAlign = "center";
    for (const at of timeTicks(begin, begin + WINDOW_MS + RESERVE_MS, Math.max(2, this.width / 110)))
      pen.fillText(clock(at, 1), (at - begin) * this.pixelsPerMs, this.height - 4);
    this.drawWritten(pen, colour("--accent"));
    this.drawn = 0;
    const { shown } = this;
    this.data.lines.forEach((line, number) => {
      if (shown.includes(line)) this.drawPoints(pen, line, colour(`--line-${number % COLOURS}`));
    });
    this.move();
  }

  /** They move with the lines. */
  drawAnnotations() {}

  drawWritten(pen, colour) {
    pen.save();
    pen.fillStyle = pen.strokeStyle = colour;
    pen.textAlign = "left";
    pen.setLineDash([2, 3]);
    for (const one of this.shared.annotations) {
      const x = Math.round((one.begin_ms - this.origin) * this.pixelsPerMs) + 0.5;
      pen.beginPath();
      pen.moveTo(x, TOP);
      pen.lineTo(x, this.height - BOTTOM);
      pen.stroke();
      pen.fillText(one.text.length > 30 ? `${one.text.slice(0, 29)}…` : one.text, x + 3, TOP + 20);
    }
    pen.restore();
  }

  drawPoints(pen, { points, gap }, colour) {
    const { at, value } = points;
    const oldest = this.origin - gap;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.4;
    pen.beginPath();
    let before = null;
    for (let number = 0; number < at.length; number += 1) {
      if (value[number] === null || at[number] < oldest) continue;
      const [x, y] = [(at[number] - this.origin) * this.pixelsPerMs, this.y(value[number])];
      if (before !== null && at[number] - before <= gap) pen.lineTo(x, y);
      else {
        // A reading without neighbours is a dot.
        pen.moveTo(x, y);
        pen.lineTo(x + 0.01, y);
      }
      before = at[number];
      this.drawn += 1;
    }
    pen.stroke();
  }

  /** Follow the axis, by whole pixels of the screen. */
  move() {
    if (this.origin === undefined) return;
    const passed = this.shared.begin - this.origin;
    if (passed > RESERVE_MS - 2000) return this.draw();
    const ratio = devicePixelRatio || 1;
    const pixels = Math.round(passed * this.pixelsPerMs * ratio) / ratio;
    if (pixels === this.moved) return;
    this.moved = pixels;
    this.moving.style.setProperty("transform", `translateX(${-pixels}px)`);
  }

  get foot() {
    return BOTTOM;
  }

  entries(at) {
    const { shown } = this;
    return this.data.lines.map((line, number) => {
      const value = at === null ? this.current(line) : line.points.near(at, line.usual);
      return [`${line.name} ${readable(value, line.unit)}`.trim(), `legend line-${number % COLOURS}`, this.data.lines.length > 1 ? shown.includes(line) : undefined];
    });
  }

  rows() {
    const { lines } = this.data;
    const newest = Math.max(...lines.map((line) => line.points.at.at(-1) ?? 0));
    const rows = [[`time (${zoneName(newest)})`, ...lines.map((line) => line.name || this.title)]];
    for (let at = newest; at > newest - 60e3; at -= 1000) rows.push([stamp(at), ...lines.map((line) => readable(line.points.near(at, line.usual), line.unit))]);
    return rows;
  }
}

/** Those that a page shows, for tests and benchmarks. */
export const shown = new Set();

/** The live part of a page. `groups`: titles and metrics; `place`: parameters; `metrics`: what is known of each;
 * `nameOf`: the name of a line; `report`: takes a sentence on how live it is. */
export class LiveCharts {
  constructor({ element, groups, place, metrics, nameOf, report }) {
    this.shared = new Shared(0, WINDOW_MS);
    [this.place, this.nameOf, this.report] = [place, nameOf, report];
    this.charts = groups.slice(0, CHARTS_MAX).map(({ title, metrics: wanted }) => {
      const figure = make("figure");
      element.append(figure);
      return { wanted, unit: metrics.get(wanted[0])?.unit ?? "", chart: new MovingChart(figure, this.shared, title), points: new Map() };
    });
    this.asked = [...new Set(this.charts.flatMap((one) => one.wanted))].join(",");
    this.behind = this.wanted = BATCH_MS + EVERY_MS;
    this.newest = 0;
    this.gpus = new Set();
    this.isOn = this.isSeen = false;
    this.touched = performance.now();
    this.pauses = new AbortController();
    const watch = { signal: this.pauses.signal, passive: true };
    document.addEventListener("visibilitychange", () => this.decide(), watch);
    for (const name of ["pointermove", "keydown", "scroll", "pointerdown"]) addEventListener(name, () => this.touch(), watch);
    this.observer = new IntersectionObserver((seen) => {
      this.isSeen = seen.at(-1).isIntersecting;
      this.decide();
    });
    this.observer.observe(element);
    shown.add(this);
  }

  touch() {
    this.touched = performance.now();
    if (!this.isOn) this.decide();
  }

  decide() {
    const isIdle = performance.now() - this.touched > IDLE_MS;
    const isWanted = this.isSeen && !document.hidden && !isIdle && !this.pauses.signal.aborted;
    if (isIdle && this.isOn) this.report("Live is paused: nobody touched this page for 30 minutes. Move the pointer to go on.");
    if (isWanted === this.isOn) return;
    this.isOn = isWanted;
    clearTimeout(this.asking);
    clearTimeout(this.moving);
    this.reading?.abort();
    if (!isWanted) return;
    [this.wholeAt, this.wait, this.offsets, this.lags] = [-Infinity, EVERY_MS, [], []];
    this.turn();
    this.step();
  }

  /** For good. */
  stop() {
    this.pauses.abort();
    this.observer.disconnect();
    for (const { chart } of this.charts) chart.close();
    shown.delete(this);
    this.decide();
  }

  /** The collector's time now, which may differ from the browser's: by the answer that came fastest. */
  now() {
    return performance.now() + (this.offsets.length ? Math.max(...this.offsets) : performance.timeOrigin);
  }

  async turn() {
    const isWhole = performance.now() - this.wholeAt > WHOLE_MS;
    // What was missing the last time, and a batch more; in steps, so that pages share answers.
    const missing = isWhole ? Infinity : this.now() - this.newest + 10e3;
    const seconds = [20, 45, 90].find((one) => one * 1000 >= missing) ?? 330;
    this.reading = new AbortController();
    try {
      const asked = new URLSearchParams({ ...this.place, metrics: this.asked, seconds });
      const answer = await ask(`/v1/live?${asked}`, this.reading.signal);
      if (isWhole) this.wholeAt = performance.now();
      this.wait = EVERY_MS;
      this.take(answer, isWhole);
    } catch (error) {
      if (error.name === "AbortError" || !this.isOn) return;
      this.wait = Math.min(WAIT_MAX_MS, this.wait * 2);
      const why = error instanceof TypeError ? "the collector does not answer" : error.status === 503 ? `the collector cannot answer now (503): ${error.message}` : error.message;
      this.report(`Not live: ${why}; it is asked again in ${this.wait / 1000} s.`);
    }
    if (this.isOn) this.asking = setTimeout(() => this.turn(), this.wait);
    this.decide();
  }

  take({ begin_ms: begin, now_ms: now, rows: all }, isWhole) {
    for (const { gpu_uuid: uuid } of all) if (uuid && this.gpus.size < GPUS_MAX) this.gpus.add(uuid);
    const rows = all.filter((row) => !row.gpu_uuid || this.gpus.has(row.gpu_uuid));
    const isFirst = !this.offsets.length;
    this.offsets = [...this.offsets, now - performance.now()].slice(-WHOLE_MS / EVERY_MS);
    const newest = rows.reduce((found, row) => Math.max(found, row.at_ms.at(-1)), 0);
    // Most answers come before the next batch: nothing is drawn then.
    const ends = rows.map((row) => row.at_ms.at(-1)).join();
    this.follow(newest, isFirst);
    if (ends !== this.ends || isWhole) this.draw(begin, rows);
    this.ends = ends;
  }

  draw(begin, rows) {
    for (const one of this.charts) {
      for (const metric of one.wanted) {
        for (const row of rows) {
          if (!row.values[metric]) continue;
          const key = [metric, row.gpu_uuid ?? row.node, row.part].join(" ");
          if (!one.points.has(key)) one.points.set(key, { name: this.nameOf({ ...row, metric }, one.wanted), unit: one.unit, points: new Points() });
          one.points.get(key).points.put(begin, row.at_ms, row.values[metric]);
        }
      }
      for (const [key, { points }] of one.points) if (points.at.at(-1) < this.shared.begin) one.points.delete(key);
      // A metric that was never read has no line.
      const lines = [...one.points.values()].filter((line) => line.points.value.some((value) => value !== null));
      one.chart.set({ lines });
    }
  }

  /** How far the axis is behind: as far as the newest row was at most in the last half minute. */
  follow(newest, isFirst) {
    this.newest = Math.max(this.newest, newest);
    const now = this.now();
    const lag = now - this.newest;
    // The first rows say nothing about those that come last of a batch.
    if (isFirst) this.lags = [[now, BATCH_MS]];
    this.lags = [...this.lags.filter(([at]) => now - at < WHOLE_MS), [now, lag]];
    const most = Math.max(...this.lags.map(([, one]) => one));
    const rounded = 1000 * Math.ceil((most + EVERY_MS) / 1000);
    this.wanted = Math.min(BEHIND_MAX_MS, rounded);
    if (isFirst) {
      this.behind = this.wanted;
      this.reach(now);
    }
    if (!this.newest) this.report("Live: no sample in the last five minutes.");
    else if (lag > Math.max(15e3, 2 * this.behind)) this.report(`No new sample since ${clock(this.newest, 1)} (${Math.round(lag / 1000)} s ago).`);
    else this.report(`Live, ${Math.round(this.wanted / 1000)} s behind.`);
  }

  /** Show the span that ends as far behind as it shall. */
  reach(now) {
    this.shared.end = now - this.behind;
    this.shared.begin = this.shared.end - WINDOW_MS;
  }

  /** Move the axis by a pixel of the screen. A new distance is reached at a tenth of the speed of time. */
  step() {
    const now = this.now();
    const passed = now - (this.stepped ?? now);
    this.stepped = now;
    const change = this.wanted - this.behind;
    this.behind += Math.sign(change) * Math.min(Math.abs(change), passed / 10);
    this.reach(now);
    let pixel = 1000;
    for (const { chart } of this.charts) {
      chart.move();
      if (chart.pixelsPerMs) pixel = Math.min(pixel, 1 / (chart.pixelsPerMs * (devicePixelRatio || 1)));
    }
    if (this.shared.cursor !== null) for (const chart of this.shared.charts) chart.drawOverlay();
    this.moving = setTimeout(() => this.step(), Math.max(STEP_MIN_MS, pixel));
  }
}
