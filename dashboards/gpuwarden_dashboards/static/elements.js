// Makes elements. Every text is text: nothing from outside becomes markup.

import { readable } from "./chart.js";

/** An element with attributes, a class where one is named after a dot, and children: elements or text; null is left out. */
export function make(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element with a text and classes. */
export function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** $2.95, $1,204; an en dash for null. */
export function usd(value) {
  if (value === null || value === undefined) return "–";
  const digits = Math.abs(value) < 1000 ? 2 : 0;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** A number with its unit: 208 kW, 12 %. */
export function reading(value, unit) {
  return readable(value, unit).replace(/([kMGTP]) W$/, " $1W");
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

/** Replace what is in an element, unless it is the same: focus and what is selected stay. */
export function put(element, ...children) {
  const fresh = element.cloneNode(false);
  fresh.append(...children.flat().filter((child) => child !== null && child !== undefined));
  if (fresh.isEqualNode(element)) return;
  const held = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  element.replaceChildren(...fresh.childNodes);
  if (held) [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held)?.focus({ preventScroll: true });
}
