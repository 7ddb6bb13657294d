// Makes elements. Every text is text: nothing from outside becomes markup.

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** An element with attributes, listeners of events, classes where they follow dots, and children: elements or text; null is left out. */
export function make(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  return filled(element, attributes, children);
}

/** The same of an SVG drawing. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** A part that opens, with its title. */
export function folded(title, ...content) {
  return make("details", {}, make("summary", {}, title), ...content);
}

/** A list of terms and what they are. */
export function facts(kind, entries) {
  return make(kind, {}, entries.map(([term, ...about]) => make("div", {}, make("dt", {}, ...[term].flat()), make("dd", {}, ...about))));
}

/** $2.95, $1,204; an en dash for null. */
export function usd(value) {
  if (value === null || value === undefined) return "–";
  const digits = Math.abs(value) < 1000 ? 2 : 0;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** 3 s, 7 min, 2 h 5 min. */
export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const at = UNITS.findIndex(([, size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [name, size] = UNITS[at];
  const whole = Math.floor(seconds / size);
  const next = UNITS[at + 1];
  const rest = next && whole < 10 ? Math.floor((seconds % size) / next[1]) : 0;
  return `${whole} ${name}${rest && at < 2 ? ` ${rest} ${next[0]}` : ""}`;
}

/** 1,250 nodes, 1 node. */
export function counted(count, word) {
  return `${count.toLocaleString("en")} ${count === 1 ? word : `${word}s`}`;
}

/** A text with its backquotes as code. */
export function prose(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, at) => (at % 2 ? make("code", {}, part) : part)) : [text];
}

/** Replace what is in an element, unless it is the same: focus and what is selected stay. */
export function put(element, ...children) {
  const fresh = element.cloneNode(false);
  fresh.append(...children.flat().filter((child) => child !== null && child !== undefined));
  if (fresh.isEqualNode(element)) return;
  const held = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  element.replaceChildren(...fresh.childNodes);
  if (held) [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held)?.focus({ preventScroll: true });
}
