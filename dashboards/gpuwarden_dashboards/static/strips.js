// Draws rows over time: states and events with their text, or one row of colours per GPU.

import { BOTTOM, LEFT, Plot, RIGHT, readable, stateColour } from "./chart.js";
import { colourOf } from "./fleetmap.js";
import { stamp, zoneName } from "./times.js";

const ROW = 15;
const HEALTHY = ["compute_bound", "busy", "serving"];

class Rows extends Plot {
  get rowHigh() {
    return ROW;
  }

  get high() {
    return (this.data?.lines.length ?? 0) * this.rowHigh + BOTTOM + 4;
  }

  y(row) {
    return 2 + row * this.rowHigh;
  }

  /** Names left of the rows; a long one keeps its end, the number of the GPU. */
  drawNames(pen, colour) {
    pen.fillStyle = colour("--soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    if (this.rowHigh < 9) return;
    this.data.lines.forEach((line, row) => {
      let name = line.name;
      while (name.length > 3 && pen.measureText(name).width > LEFT - 8) name = `…${name.replace(/^…/, "").slice(1)}`;
      pen.fillText(name, LEFT - 5, this.y(row) + this.rowHigh / 2);
    });
  }
}

/** Rows of runs: `lines` are {name, runs} of {begin_ms, end_ms, label, text, severity, verdict, share}. */
export class Strips extends Rows {
  set({ begin, step, columns, lines }) {
    this.data = { begin, step, columns, lines };
    const said = lines.map((line) => `${line.name}: ${[...new Set(line.runs.map((run) => run.label))].join(", ") || "nothing"}`);
    this.box.setAttribute("aria-label", `${this.title}: ${said.join("; ")}`);
    this.draw();
  }

  drawNow(pen, colour) {
    this.drawNames(pen, colour);
    this.drawTimes(pen, colour, () => {
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.font = "10px system-ui, sans-serif";
      this.data.lines.forEach((line, row) => {
        const y = this.y(row);
        pen.globalAlpha = 0.5;
        pen.fillStyle = colour("--line");
        pen.fillRect(LEFT, y + this.rowHigh - 1, this.width, 1);
        line.runs.forEach((run, number) => this.drawRun(pen, colour, run, line.runs[number + 1], y));
      });
      pen.globalAlpha = 1;
    });
  }

  drawRun(pen, colour, run, next, y) {
    const end = this.shared.end;
    const x = Math.max(this.x(run.begin_ms), LEFT);
    const width = Math.max(2, this.x(Math.min(run.end_ms ?? end, end)) - x);
    const isPoint = run.end_ms === run.begin_ms;
    if (x > this.width || x + width < LEFT) return;
    pen.globalAlpha = run.label === "busy" || run.severity || run.label === "throttled" || run.label === "held" ? 0.55 : 0.4;
    if (run.share !== undefined) pen.globalAlpha = 0.15 + 0.5 * run.share;
    if (run.phase) pen.globalAlpha = 0.6;
    pen.fillStyle = run.phase
      ? colour(`--phase-${run.phase}`)
      : run.severity
        ? colour(`--${run.severity}`)
        : run.verdict
          ? colour(HEALTHY.includes(run.label) ? "--line-2" : run.label === "unknown" ? "--map-silent" : "--map-warning")
          : run.share !== undefined
            ? colour(run.share >= 0.99 ? "--line-2" : "--critical")
            : stateColour(run.label, colour);
    pen.fillRect(x, y + 1, width, this.rowHigh - 3);
    // Hatched, so that it can be distinguished without colour.
    if (run.label === "throttled" || run.label === "held") this.hatch(pen, colour, x, y + 1, width);
    const room = (next ? Math.min(this.x(next.begin_ms), this.width) : this.width - RIGHT) - x - 4;
    const space = isPoint ? room : Math.min(room, width);
    const text = String(run.short ?? run.label).replace(/_/g, " ");
    if (space < 60 && pen.measureText(text).width + 6 > space) return;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, space, this.rowHigh);
    pen.clip();
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--ink");
    pen.fillText(text, x + 4, y + this.rowHigh / 2);
    pen.restore();
  }

  hatch(pen, colour, x, y, width) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, this.rowHigh - 3);
    pen.clip();
    pen.strokeStyle = colour("--ink");
    pen.globalAlpha = 0.35;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - ROW; at < x + width; at += 5) {
      pen.moveTo(at, y + this.rowHigh);
      pen.lineTo(at + ROW, y - 3);
    }
    pen.stroke();
    pen.restore();
  }

  entries() {
    const { cursor, begin, end } = this.shared;
    if (cursor === null) return [["point at a time: what held then stands here", "soft"]];
    const near = (4 * (end - begin)) / (this.width || 1);
    return this.data.lines.flatMap((line) => {
      const runs = line.runs.filter((run) => run.begin_ms - (run.end_ms === run.begin_ms ? near : 0) <= cursor && cursor < (run.end_ms === run.begin_ms ? run.end_ms + near : (run.end_ms ?? Infinity)));
      return runs.slice(-2).map((run) => [`${line.name}: ${(run.text ?? run.label).replace(/_/g, " ")}`, run.severity ? `mark ${run.severity}` : "legend"]);
    });
  }

  rows() {
    const found = this.data.lines.flatMap((line) => line.runs.map((run) => ({ line, run })));
    found.sort((a, b) => b.run.begin_ms - a.run.begin_ms);
    return [
      [`from (${zoneName(this.data.begin)})`, "to", "row", "what"],
      ...found.slice(0, 300).map(({ line, run }) => [stamp(run.begin_ms), run.end_ms === null ? "now" : stamp(run.end_ms), line.name, run.text ?? run.label]),
    ];
  }
}

/** A row of colours for each line: {name, mean, unit}; dark is low, bright is high, white is no reading. */
export class Heat extends Rows {
  get rowHigh() {
    return Math.max(3, Math.min(ROW, Math.floor(420 / (this.data?.lines.length || 1))));
  }

  set({ begin, step, columns, lines }) {
    const values = lines.flatMap((line) => line.mean).filter((value) => value !== null);
    const isShare = lines[0]?.unit === "percent";
    let least = values.reduce((a, b) => Math.min(a, b), Infinity);
    let greatest = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (isShare) [least, greatest] = [0, 100];
    else least = Math.min(least, greatest * 0.9);
    if (!values.length) [least, greatest] = [0, 1];
    if (least === greatest) greatest = least + 1;
    this.range = { least, greatest, unit: lines[0]?.unit ?? "" };
    this.data = { begin, step, columns, lines };
    const mean = (line) => {
      const there = line.mean.filter((value) => value !== null);
      return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
    };
    this.box.setAttribute("aria-label", `${this.title}, mean of each: ${lines.map((line) => `${line.name} ${readable(mean(line), line.unit)}`).join("; ")}`);
    this.draw();
  }

  drawNow(pen, colour) {
    this.drawNames(pen, colour);
    const { begin, step, lines } = this.data;
    const { least, greatest } = this.range;
    this.drawTimes(pen, colour, () => {
      lines.forEach((line, row) => {
        const width = this.x(begin + step) - this.x(begin);
        let until = -1;
        let last = -1;
        line.mean.forEach((value, column) => {
          if (value === null) return;
          const x = this.x(begin + column * step);
          // Readings that are further apart than columns fill the space up to the next.
          const from = last >= 0 && column - last <= 10 && column - last > 1 ? until : x;
          pen.fillStyle = `rgb(${colourOf((value - least) / (greatest - least)).join(" ")})`;
          pen.fillRect(from, this.y(row), x + width - from + 0.5, Math.max(2, this.rowHigh - 1));
          until = x + width;
          last = column;
        });
      });
    });
  }

  entries(at) {
    const { least, greatest, unit } = this.range;
    const scale = `from ${readable(least, unit)} (dark) to ${readable(greatest, unit)} (bright)`;
    const { lines } = this.data;
    if (at === null) return [[`${scale}. ${this.meaning ?? ""}`, "soft"]];
    return [[scale, "soft"], ...lines.slice(0, 16).map((line) => [`${line.name} ${readable(line.mean[at], unit)}`, "legend"])];
  }

  rows() {
    const { begin, step, columns, lines } = this.data;
    const every = Math.ceil(columns / 40);
    const rows = [[`time (${zoneName(begin)})`, ...lines.map((line) => line.name)]];
    for (let column = 0; column < columns; column += every) {
      rows.push([
        stamp(begin + column * step),
        ...lines.map((line) => readable(line.mean.slice(column, column + every).find((value) => value !== null) ?? null, line.unit)),
      ]);
    }
    return rows;
  }
}
