// Annotations: reads those of the shown span for all charts of a page, lists them, and lets editors write and delete them.

import { counted, make, put } from "./elements.js";
import { ask, change, mayEdit } from "./live.js";
import { stamp, timeIn, zoneName } from "./times.js";

const OLD_MS = 15e3;
const WINDOW_MIN_MS = 86400e3; // a span of live charts that has not begun ends near 1970

/** The annotations of the charts of `shared`, listed in a part after `after`. `place`: parameters of the request, and what
 * new ones are about: node, gpu, job; {} for all. */
export class Annotations {
  constructor(shared, after, place = {}) {
    this.shared = shared;
    this.place = place;
    this.asked = this.other = null;
    this.list = make("ul.plain-list");
    this.outcome = make("p.soft", { role: "status" });
    this.note = make("p.soft", { role: "status" });
    this.title = make("summary", {}, "annotations");
    this.part = make("details", { id: "annotations", hidden: true }, this.title, this.list, this.note, mayEdit() ? this.form() : null, this.outcome);
    after.after(this.part);
  }

  /** Draw them on the charts of another span, too, and list those of that one; null: no longer. */
  also(shared) {
    [this.other, this.asked] = [shared, null];
  }

  get span() {
    return this.other?.end > WINDOW_MIN_MS ? this.other : this.shared;
  }

  /** Ask for those of the span, unless that was just done. */
  async look() {
    const { begin, end } = this.span;
    const { asked } = this;
    const now = Date.now();
    if (asked && now - asked.at < OLD_MS && begin >= asked.begin && end <= asked.end) return;
    const ahead = end - begin;
    this.asked = { at: now, begin: begin - ahead, end: end + ahead };
    try {
      let found = await this.read(begin - ahead, end + ahead);
      if (found.truncated) {
        // The newest alone are answered: those after the span may leave out those in it.
        found = await this.read(begin, end);
        if (this.asked) [this.asked.begin, this.asked.end] = [begin, end];
      }
      this.show(found.annotations);
      this.note.textContent = found.truncated ? `These are the newest ${found.annotations.length} of the span; there are more.` : "";
    } catch (error) {
      this.asked = null;
      this.part.hidden = false;
      this.note.textContent = `annotations cannot be read: ${error.message}`;
    }
  }

  read(begin, end) {
    return ask(`/v1/annotations?${new URLSearchParams({ ...this.place, begin: Math.max(0, Math.round(begin)), end: Math.round(end) })}`);
  }

  show(found) {
    for (const shared of [this.shared, this.other]) {
      if (!shared) continue;
      shared.annotations = found;
      for (const chart of shared.charts) chart.draw();
    }
    const { begin, end } = this.span;
    // A page that follows the time is a moment behind.
    const until = end > Date.now() - 60e3 ? Date.now() + 1000 : end;
    const there = found.filter((one) => one.begin_ms < until && (one.end_ms ?? one.begin_ms) >= begin);
    this.part.hidden = !there.length && !mayEdit();
    this.title.textContent = there.length ? counted(there.length, "annotation") : "annotations";
    put(this.list, there.map((one) => this.line(one)));
  }

  line(one) {
    const about = [one.node, one.gpu === null ? null : `GPU ${one.gpu}`, one.job === null ? null : `job ${one.job}`].filter(Boolean).join(" ");
    const until = one.end_ms ? ` to ${stamp(one.end_ms)}` : "";
    const more = [about, ...one.tags, one.author].filter(Boolean).join(" · ");
    const gone = mayEdit()
      ? make("button.plain", { type: "button", "data-key": one.id, "aria-label": `delete ${one.text}`, click: () => this.done(change("DELETE", `/v1/annotations/${one.id}`)) }, "delete")
      : null;
    return make("li", {}, make("b", {}, one.text), " ", make("span.soft", {}, `${stamp(one.begin_ms)}${until} ${zoneName(one.begin_ms)} ${more}`), " ", gone);
  }

  form() {
    const { node, gpu, job } = this.place;
    const choices = [["", "all"]];
    if (node !== undefined) choices.push(["node", node]);
    if (gpu !== undefined) choices.push(["gpu", `${node} GPU ${gpu}`]);
    if (job !== undefined) choices.push(["job", `job ${job}`]);
    const about = make("select", { name: "about" }, choices.map(([value, text]) => make("option", { value }, text)));
    return make("form.row", { submit: (event) => this.add(event) },
      make("label", {}, "what happened ", make("input", { name: "text", required: true, maxlength: 200, size: 30 })),
      make("label", {}, "at ", make("input", { name: "at", type: "datetime-local" })), make("span.soft", {}, make("span.zone", {}, zoneName()), "; empty: now"),
      choices.length > 1 ? make("label", {}, "about ", about) : null,
      make("button", {}, "write"));
  }

  add(event) {
    event.preventDefault();
    const form = event.target;
    const { text, at, about } = form.elements;
    const { node, gpu, job } = this.place;
    const of = { "": {}, node: { node }, gpu: { node, gpu }, job: { job } }[about?.value ?? ""];
    const when = at.value ? { at: new Date(timeIn(at)).toISOString() } : {};
    this.done(change("POST", "/v1/annotations", { text: text.value, ...when, ...of }).then(() => form.reset()));
  }

  async done(changing) {
    try {
      await changing;
      this.outcome.textContent = "";
      this.asked = null;
      await this.look();
    } catch (error) {
      this.outcome.textContent = error.message;
    }
  }
}
