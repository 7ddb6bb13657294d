// The search box of the fleet: filters while one types, suggests names, and opens one on Enter.

import { make } from "./elements.js";
import { exactly } from "./fleetquery.js";
import { ask } from "./live.js";

const SHOWN = 12;
const PATHS = { node: "/nodes/", gpu: "/gpus/", user: "/users/", job: "/jobs/" };

function path(kind, name) {
  const part = encodeURIComponent(name);
  return PATHS[kind] + (kind === "job" ? part.replaceAll("%2F", "/") : part);
}

export class Search {
  /** `fleet()`: the data; `onText`: called when the text changes. */
  constructor(input, list, fleet, onText) {
    Object.assign(this, { input, list, fleet, onText });
    this.options = [];
    this.chosen = -1;
    this.timer = null;
    input.addEventListener("input", () => {
      onText();
      this.propose();
    });
    input.addEventListener("focus", () => this.propose());
    input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    input.addEventListener("keydown", (event) => this.key(event));
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
      event.preventDefault();
      input.focus();
      input.select();
    });
  }

  /** The last word, which is being typed. */
  get word() {
    return this.input.value.match(/(?:[^\s"]|"[^"]*"?)*$/u)[0];
  }

  propose() {
    clearTimeout(this.timer);
    const word = this.word;
    const [, key, , said] = word.match(/^[-!]?([\p{L}\p{N}_./-]+)(:|=)"?(.*)$/u) ?? [];
    if (key) return this.show(this.values(key.toLowerCase(), said.toLowerCase()));
    const keys = word ? this.keys(word.toLowerCase()) : this.keys("");
    this.show(keys);
    const name = this.input.value.trim();
    if (name.length < 2 || /[:=<>]/.test(name)) return;
    this.timer = setTimeout(async () => {
      const { found } = await ask(`/v1/search?q=${encodeURIComponent(name)}`).catch(() => ({ found: [] }));
      if (this.input.value.trim() !== name || document.activeElement !== this.input) return;
      this.show([...found.map((one) => ({ kind: one.kind, text: one.name, detail: one.detail ?? "", href: path(one.kind, one.name) })), ...keys]);
    }, 120);
  }

  keys(start) {
    const keys = ["node", "model", "username", "job", "state", "gpu", "value", ...(this.fleet().labelKeys ?? [])];
    return keys.filter((key) => key.startsWith(start)).map((key) => ({ kind: "filter", text: key === "value" ? "value<" : `${key}:`, detail: key === "value" ? "of the colour, also > <= >=" : "", word: key === "value" ? "value<" : `${key}:` }));
  }

  values(key, said) {
    const fleet = this.fleet();
    if (key === "state") return [...fleet.terms.states, "alerting", "warning", "critical"].filter((name) => name.includes(said)).map((name) => ({ kind: "state", text: name, word: exactly("state", name) }));
    if (!fleet.nodes || !fleet.has(key)) return [];
    const { names, codes } = fleet.column(key);
    const counts = new Uint32Array(names.length);
    for (const code of codes) counts[code] += 1;
    return names
      .map((name, code) => ({ kind: key, text: name, detail: `${counts[code].toLocaleString("en")} GPUs`, word: exactly(key, name), count: counts[code] }))
      .filter((one) => one.text && one.count && one.text.toLowerCase().includes(said))
      .sort((a, b) => b.count - a.count);
  }

  show(options) {
    this.options = options.slice(0, SHOWN);
    this.chosen = -1;
    this.list.replaceChildren(...this.options.map((option, number) => {
      const item = make("li", { role: "option", id: `option-${number}`, "aria-selected": "false" }, make("span.kind", {}, option.kind), " ", option.text, " ", make("span.soft", {}, option.detail ?? ""));
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.take(option);
      });
      return item;
    }));
    const isOpen = this.options.length > 0 && document.activeElement === this.input;
    this.list.hidden = !isOpen;
    this.input.setAttribute("aria-expanded", String(isOpen));
    this.input.removeAttribute("aria-activedescendant");
  }

  close() {
    this.show([]);
  }

  key(event) {
    if (event.key === "Escape") return this.close();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!this.options.length) return this.propose();
      event.preventDefault();
      const count = this.options.length;
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : this.chosen < 0 ? 0 : -1) + count) % count;
      [...this.list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === this.chosen)));
      this.list.children[this.chosen].scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", `option-${this.chosen}`);
      return null;
    }
    if (event.key === "Tab" && this.chosen >= 0 && this.options[this.chosen].word) {
      event.preventDefault();
      return this.take(this.options[this.chosen]);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      return this.enter();
    }
    return null;
  }

  /** Open the chosen suggestion, else the best match of a name; a filter stays. */
  async enter() {
    if (this.chosen >= 0) return this.take(this.options[this.chosen]);
    const name = this.input.value.trim();
    if (!name || /[:=<>]/.test(name)) return this.close();
    const { found } = await ask(`/v1/search?q=${encodeURIComponent(name)}`);
    const best = found.find((one) => one.name.toLowerCase() === name.toLowerCase()) ?? found[0];
    if (best) location.href = path(best.kind, best.name);
    return this.close();
  }

  take(option) {
    if (option.href) {
      location.href = option.href;
      return;
    }
    const { value } = this.input;
    const sign = /^[-!]/.test(this.word) ? this.word[0] : "";
    this.input.value = value.slice(0, value.length - this.word.length) + sign + option.word + (/[:<]$/.test(option.word) ? "" : " ");
    this.onText();
    this.input.focus();
    this.propose();
  }
}
