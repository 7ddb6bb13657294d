// Draws every GPU of the fleet as a cell: a node is a group of cells, nodes stand in lines. One image, no element a cell.

const SIZES = [18, 14, 11, 8, 6, 5, 4, 3, 2];
const HEIGHT_MAX = 420;

/** Where cells are: pure arithmetic, for drawing and for finding what is under the pointer. */
export function layout(nodes, width, heightMax = HEIGHT_MAX) {
  const most = Math.max(1, ...nodes.map((node) => node.values.length));
  let found;
  for (const cell of SIZES) {
    const gap = cell > 4 ? 1 : 0;
    const block = most * cell + Math.max(2, cell / 3);
    const perLine = Math.max(1, Math.floor(width / block));
    const lines = Math.ceil(nodes.length / perLine);
    const line = cell + Math.max(1, Math.floor(cell / 3));
    found = { cell, gap, block, perLine, lines, line, height: Math.ceil(lines * line) };
    if (found.height <= heightMax) break;
  }
  return found;
}

/** The node and GPU at a point, or null. */
export function hit(nodes, plan, x, y) {
  const line = Math.floor(y / plan.line);
  const column = Math.floor(x / plan.block);
  if (line < 0 || column < 0 || column >= plan.perLine || y - line * plan.line >= plan.cell) return null;
  const node = nodes[line * plan.perLine + column];
  const place = Math.floor((x - column * plan.block) / plan.cell);
  if (!node || place < 0 || place >= node.values.length) return null;
  return { node, place };
}

// Viridis-like, even in lightness, told apart by people who do not see red or green.
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
  constructor(box, { onPick, describe }) {
    this.box = box;
    this.describe = describe;
    this.canvas = box.querySelector("canvas");
    this.tip = box.querySelector("[role=status]");
    this.nodes = [];
    new ResizeObserver(() => this.draw()).observe(box);
    addEventListener("themechange", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => {
      const found = this.at(event);
      this.tip.textContent = found ? this.describe(found.node, found.place) : "";
      this.canvas.classList.toggle("over", Boolean(found));
    });
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) onPick(found.node, found.place);
    });
  }

  at(event) {
    const place = this.canvas.getBoundingClientRect();
    return this.plan ? hit(this.nodes, this.plan, event.clientX - place.left, event.clientY - place.top) : null;
  }

  /** `nodes`: {name, values, states}; `range`: the values at both ends of the scale; `dim`: whether a node is not meant. */
  set(nodes, range, dim) {
    this.nodes = nodes;
    this.range = range;
    this.dim = dim;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width || !this.nodes.length) return;
    const ratio = Math.max(1, Math.round(devicePixelRatio || 1));
    const plan = (this.plan = layout(this.nodes, width));
    this.canvas.width = width * ratio;
    this.canvas.height = plan.height * ratio;
    this.canvas.style.setProperty("width", `${width}px`);
    this.canvas.style.setProperty("height", `${plan.height}px`);
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(this.canvas.width, this.canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const style = getComputedStyle(this.box);
    const named = (name) => packed(parsed(style.getPropertyValue(name)));
    const silent = named("--map-silent");
    const absent = named("--map-absent");
    const trouble = { 2: named("--map-warning"), 3: named("--map-critical") };
    const [low, high] = this.range;
    const cache = Array.from({ length: 101 }, (_, share) => packed(colourOf(share / 100)));
    const side = (plan.cell - plan.gap) * ratio;
    this.nodes.forEach((node, number) => {
      const left = Math.round((number % plan.perLine) * plan.block) * ratio;
      const top = Math.round(Math.floor(number / plan.perLine) * plan.line) * ratio;
      const faint = this.dim?.(node) ? 0x40000000 : 0xff000000;
      node.values.forEach((value, place) => {
        const state = node.states[place];
        const share = value === null ? 0 : Math.round((100 * (value - low)) / (high - low || 1));
        const inner = state === 1 ? silent : value === null ? absent : cache[Math.min(100, Math.max(0, share))];
        const from = left + place * plan.cell * ratio;
        fill(pixels, image.width, from, top, side, side, (inner & 0xffffff) | faint);
        if (trouble[state]) {
          const edge = Math.max(1, Math.round(side / 4));
          fill(pixels, image.width, from, top + side - edge, side, edge, (trouble[state] & 0xffffff) | faint);
        }
      });
    });
    pen.putImageData(image, 0, 0);
  }
}

function fill(pixels, width, left, top, wide, high, colour) {
  for (let y = top; y < top + high; y += 1) pixels.fill(colour, y * width + left, Math.min(y * width + left + wide, (y + 1) * width));
}

function parsed(text) {
  const hex = text.trim().replace("#", "");
  return [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
