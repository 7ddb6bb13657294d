// Draws every GPU of the fleet as a cell: a node is a block of cells, blocks stand in lines, groups below each other.
// It is one image, without an element per cell; positions are computed.

const PLANS = [[88, 18], [72, 18], [58, 17], [44, 16], [36, 16], [30, 15], [24, 15], [20, 14], [16, 14], [13, 13], [11, 0], [9, 0], [7, 0], [6, 0], [5, 0], [4, 0], [3, 0], [2, 0]];
const HEIGHT_MAX = 460;
export const HEAD = 34;
const VALUES_MAX = 600;
const NONE = -1;

/** Where cells are. `groups`: {cells}; `per`: cells of a block, in which NONE stands for no GPU; `head`: room above a group. */
export function layout(groups, per, width, head = 0, heightMax = HEIGHT_MAX) {
  let found;
  for (const [cell, name] of PLANS) {
    if (per * cell > width && cell > 2) continue;
    const gap = cell >= 20 ? 2 : cell > 4 ? 1 : 0;
    const between = per > 1 ? Math.max(2, Math.round(cell / 3)) : 0;
    const tight = per * cell + between;
    const perLine = Math.max(1, Math.floor((width + between) / tight));
    // The space left in a line goes between its blocks.
    const block = per > 1 ? Math.min(tight + 2 * cell, Math.max(tight, Math.floor((width + between) / perLine))) : tight;
    const above = per > 1 ? name : 0;
    const line = above + cell + (per > 1 ? Math.max(1, Math.round(cell / 4)) : 0);
    let y = 0;
    const tops = groups.map((group) => {
      const top = y + head;
      y = top + Math.ceil(group.cells.length / per / perLine) * line + (head ? 6 : 0);
      return top;
    });
    found = { groups, per, cell, gap, block, perLine, above, line, tops, height: Math.max(y, cell) };
    if (y <= heightMax + groups.length * head) break;
  }
  return found;
}

/** {group, at} of the cell at a point, `isName` where the point is on the name of a block; or null. */
export function hit(plan, x, y) {
  let group = plan.tops.length - 1;
  while (group >= 0 && plan.tops[group] > y) group -= 1;
  if (group < 0 || x < 0) return null;
  const line = Math.floor((y - plan.tops[group]) / plan.line);
  const inLine = y - plan.tops[group] - line * plan.line;
  const column = Math.floor(x / plan.block);
  if (column >= plan.perLine || inLine >= plan.above + plan.cell) return null;
  const within = Math.floor((x - column * plan.block) / plan.cell);
  const first = (line * plan.perLine + column) * plan.per;
  const { cells } = plan.groups[group];
  if (inLine < plan.above) return first < cells.length ? { group, at: first, isName: true } : null;
  const at = first + within;
  return within < plan.per && at < cells.length && cells[at] !== NONE ? { group, at, isName: false } : null;
}

/** The upper left corner of a cell. */
export function corner(plan, { group, at }) {
  const block = Math.floor(at / plan.per);
  return {
    x: (block % plan.perLine) * plan.block + (at % plan.per) * plan.cell,
    y: plan.tops[group] + Math.floor(block / plan.perLine) * plan.line + plan.above,
  };
}

/** The next cell from one in a direction: -1, 0 or 1 across and down; the same cell at the end. */
export function step(plan, from, across, down) {
  const next = { ...from };
  if (across) {
    do {
      next.at += across;
      if (next.at < 0 || next.at >= plan.groups[next.group].cells.length) {
        next.group += across;
        if (!plan.groups[next.group]) return from;
        next.at = across > 0 ? 0 : plan.groups[next.group].cells.length - 1;
      }
    } while (plan.groups[next.group].cells[next.at] === NONE);
    return next;
  }
  const line = plan.per * plan.perLine;
  const inLine = from.at % line;
  next.at += down * line;
  const { cells } = plan.groups[from.group];
  if (next.at < 0 || (next.at >= cells.length && Math.floor(from.at / line) === Math.floor((cells.length - 1) / line))) {
    next.group += down;
    if (!plan.groups[next.group]) return from;
    const lines = Math.floor((plan.groups[next.group].cells.length - 1) / line);
    next.at = (down > 0 ? 0 : lines * line) + inLine;
  }
  next.at = Math.min(next.at, plan.groups[next.group].cells.length - 1);
  while (next.at > 0 && plan.groups[next.group].cells[next.at] === NONE) next.at -= 1;
  return next;
}

/** Cells of nodes in blocks of `per`, with NONE where a node has fewer; nodes follow each other in `cells`. */
export function blocks(cells, nodeOf, per) {
  if (per === 1) return cells;
  const found = [];
  let node = null;
  for (const at of cells) {
    if (nodeOf[at] !== node) while (found.length % per) found.push(NONE);
    node = nodeOf[at];
    found.push(at);
  }
  while (found.length % per) found.push(NONE);
  return found;
}

// Like viridis: even in lightness, and safe for colour-blind readers.
const SCALE = [
  [52, 40, 95], [57, 86, 140], [37, 122, 142], [31, 158, 137], [84, 190, 108], [165, 214, 66], [245, 228, 56],
];

/** Colour of a share from 0 to 1. */
export function colourOf(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const from = Math.min(Math.floor(at), SCALE.length - 2);
  return SCALE[from].map((part, number) => Math.round(part + (SCALE[from + 1][number] - part) * (at - from)));
}

export class FleetMap {
  /** `onPick(gpu, isName, event)`; `describe(gpu)`: words; `nameOf(gpu)`: of its block. */
  constructor(box, { onPick, describe, nameOf }) {
    Object.assign(this, { box, describe, nameOf });
    this.stage = box.querySelector(".stage");
    this.canvas = box.querySelector("canvas");
    this.ring = box.querySelector(".ring");
    this.tip = box.querySelector("[role=status]");
    this.view = null;
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(box);
    addEventListener("themechange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) onPick(this.gpu(found), found.isName, event);
    });
    this.stage.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.stage) return;
      const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (event.key === "Enter" && this.cursor) onPick(this.gpu(this.cursor), false, event);
      else if (event.key === "Escape") this.point(null);
      else if (event.key === "Home") this.point(this.end(1));
      else if (event.key === "End") this.point(this.end(-1));
      else if (ways[event.key]) this.point(this.cursor ? step(this.plan, this.cursor, ...ways[event.key]) : this.end(1));
      else return;
      event.preventDefault();
    });
  }

  gpu({ group, at }) {
    return this.plan.groups[group].cells[at];
  }

  /** The first or the last cell. */
  end(way) {
    const { groups } = this.plan ?? { groups: [] };
    if (!groups.length) return null;
    const group = way > 0 ? 0 : groups.length - 1;
    let at = way > 0 ? 0 : groups[group].cells.length - 1;
    while (groups[group].cells[at] === NONE) at += way;
    return { group, at };
  }

  at(event) {
    const place = this.canvas.getBoundingClientRect();
    return this.plan ? hit(this.plan, event.clientX - place.left, event.clientY - place.top) : null;
  }

  /** Move the cursor, and describe the cell. */
  point(found) {
    this.canvas.classList.toggle("over", Boolean(found));
    this.cursor = found;
    this.told();
    this.ring.hidden = !found;
    if (!found) return;
    const { x, y } = corner(this.plan, found);
    const side = this.plan.cell - this.plan.gap;
    for (const [name, value] of [["left", x - 2], ["top", y - 2], ["width", side + 4], ["height", side + 4]]) this.ring.style.setProperty(name, `${value}px`);
  }

  told() {
    const said = this.cursor ? this.describe(this.gpu(this.cursor)) : "";
    if (this.tip.textContent !== said) this.tip.textContent = said;
  }

  /** `groups`, `per`, `head`: see `layout`. By GPU: `share` of the scale (NaN: no reading), `states`, `levels(gpu)` of
      alerts, `text(gpu)`. `silent`: the state that is drawn hollow; `colours`: names of styles by state instead of the scale. */
  set(view) {
    const where = this.cursor && this.plan ? this.gpu(this.cursor) : null;
    this.view = view;
    this.draw();
    if (where === null) return;
    const isThere = this.plan?.groups[this.cursor.group]?.cells[this.cursor.at] === where;
    if (isThere) this.told();
    else this.point(null);
  }

  draw() {
    const width = this.stage.clientWidth;
    if (!width || !this.view) return;
    const { groups, per, head, share, states, levels, silent, colours, text } = this.view;
    const ratio = Math.max(1, Math.round(devicePixelRatio || 1));
    const plan = (this.plan = layout(groups, per, width, head));
    this.canvas.width = width * ratio;
    this.canvas.height = plan.height * ratio;
    this.canvas.style.setProperty("width", `${width}px`);
    this.canvas.style.setProperty("height", `${plan.height}px`);
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(this.canvas.width, this.canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const style = getComputedStyle(this.box);
    const named = (name) => packed(parsed(style.getPropertyValue(name)));
    const [absent, hollow, card] = ["--map-absent", "--map-silent", "--card"].map(named);
    const marks = { 2: named("--map-warning"), 3: named("--map-critical") };
    const ofState = colours?.map(named);
    const scale = Array.from({ length: 101 }, (_, part) => packed(colourOf(part / 100)));
    const side = (plan.cell - plan.gap) * ratio;
    const edge = Math.max(1, Math.round(side / 5));
    groups.forEach((group, number) => {
      for (let at = 0; at < group.cells.length; at += 1) {
        const gpu = group.cells[at];
        if (gpu === NONE) continue;
        const block = Math.floor(at / per);
        const x = ((block % plan.perLine) * plan.block + (at % per) * plan.cell) * ratio;
        const y = (plan.tops[number] + Math.floor(block / plan.perLine) * plan.line + plan.above) * ratio;
        const part = share[gpu];
        const state = states[gpu] & 15;
        if (state === silent) {
          fill(pixels, image.width, x, y, side, side, hollow);
          if (side > 4) fill(pixels, image.width, x + edge / 2 + 1, y + edge / 2 + 1, side - edge - 2, side - edge - 2, card);
        } else fill(pixels, image.width, x, y, side, side, ofState ? ofState[state] : part === part ? scale[Math.round(100 * Math.min(1, Math.max(0, part)))] : absent);
        const mark = marks[levels(gpu)];
        if (mark) fill(pixels, image.width, x, y + side - edge, side, edge, mark);
        if (mark === marks[3] && mark) fill(pixels, image.width, x, y, edge, side, mark);
      }
    });
    pen.putImageData(image, 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.write(pen, plan, style, text, share, ofState);
    if (this.cursor && plan.groups[this.cursor.group]?.cells.length > this.cursor.at) this.point(this.cursor);
  }

  /** Names above blocks and values in cells, if there is room. */
  write(pen, plan, style, text, share, ofState) {
    const room = plan.block - 6;
    pen.textBaseline = "alphabetic";
    plan.groups.forEach((group, number) => {
      for (let at = 0; plan.above && at < group.cells.length; at += plan.per) {
        const { x, y } = corner(plan, { group: number, at });
        pen.font = "11px system-ui, sans-serif";
        pen.fillStyle = style.getPropertyValue("--soft");
        pen.textAlign = "left";
        pen.fillText(shortened(pen, this.nameOf(group.cells[at]), room), x, y - 3);
      }
      if (plan.cell < 24 || plan.groups.reduce((sum, one) => sum + one.cells.length, 0) > VALUES_MAX) return;
      group.cells.forEach((gpu, at) => {
        if (gpu === NONE) return;
        const { x, y } = corner(plan, { group: number, at });
        const side = plan.cell - plan.gap;
        const isLight = !ofState && share[gpu] > 0.55;
        pen.font = `${plan.cell > 48 ? 16 : plan.cell > 32 ? 12 : 10}px system-ui, sans-serif`;
        pen.textAlign = "center";
        pen.fillStyle = share[gpu] !== share[gpu] || ofState ? style.getPropertyValue("--ink") : isLight ? "#111" : "#fff";
        pen.fillText(text(gpu), x + side / 2, y + side / 2 + (plan.cell > 48 ? 6 : 4));
      });
    });
  }
}

function shortened(pen, name, room) {
  if (pen.measureText(name).width <= room) return name;
  let from = 1;
  while (from < name.length && pen.measureText(`…${name.slice(from)}`).width > room) from += 1;
  return `…${name.slice(from)}`;
}

function fill(pixels, width, left, top, wide, high, colour) {
  const [x, y] = [Math.round(left), Math.round(top)];
  for (let row = y; row < y + high; row += 1) pixels.fill(colour, row * width + x, Math.min(row * width + x + Math.round(wide), (row + 1) * width));
}

function parsed(text) {
  const hex = text.trim().replace("#", "");
  const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((at) => Number.parseInt(full.slice(at, at + 2), 16));
}

function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
