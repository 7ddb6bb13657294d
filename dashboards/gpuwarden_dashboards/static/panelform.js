// The dialog that makes or changes a panel.

import { make } from "./elements.js";

const TEXT_ROWS = 8;

function number(text) {
  return text.trim() === "" ? null : Number(text);
}

/** Ask for the parts of a panel; `done` gets the panel, when the reader has accepted. */
export function editPanel(panel, { kinds, columns, rows }, done) {
  const field = (label, element) => make("label", {}, `${label} `, element);
  const input = (name, value, more = {}) => make("input", { name, value: value ?? null, ...more });
  const title = input("title", panel.title, { required: true, maxlength: 80 });
  const kind = make("select", { name: "kind" }, kinds.map((one) => make("option", { value: one, selected: one === panel.kind }, one)));
  const sql = make("textarea", { name: "sql", rows: TEXT_ROWS, spellcheck: "false" }, panel.sql ?? "SELECT node, gpu, util_percent FROM gpus_now ORDER BY node, gpu");
  const chart = input("chart", panel.chart, { placeholder: "node=n1&metrics=util_percent" });
  const [ofSql, ofChart] = [field("SQL; $begin and $end are the time range of the page", sql), field("chart", chart)];
  const width = input("width", panel.width ?? 6, { type: "number", min: 1, max: columns });
  const height = input("height", panel.height ?? 4, { type: "number", min: 1, max: rows });
  const unit = input("unit", panel.unit, { maxlength: 30, placeholder: "percent, watts, bytes, …" });
  const limits = ["warning", "critical"].map((name) => input(name, panel.thresholds?.[name], { type: "number", step: "any" }));
  const dialog = make("dialog.panel-form", { "aria-label": "Panel" },
    make("form", { submit: accept }, make("h2", {}, "Panel"), field("title", title), field("kind", kind), ofSql, ofChart,
      make("div.row", {}, field("width", width), field("height", height), field("unit", unit), field("warning from", limits[0]), field("critical from", limits[1])),
      make("div.row", {}, make("button.main", {}, "accept"), make("button", { type: "button", click: () => dialog.close() }, "cancel"))));

  function choose() {
    const isChart = kind.value === "chart";
    [ofSql.hidden, ofChart.hidden] = [isChart, !isChart];
    [sql.required, chart.required] = [!isChart, isChart];
  }

  function accept(event) {
    event.preventDefault();
    const thresholds = Object.fromEntries(limits.map((one) => [one.name, number(one.value)]).filter(([, value]) => value !== null));
    const made = {
      title: title.value, kind: kind.value, width: Number(width.value), height: Number(height.value),
      ...(kind.value === "chart" ? { chart: chart.value.trim() } : { sql: sql.value }),
      ...(unit.value.trim() ? { unit: unit.value.trim() } : {}),
      ...(Object.keys(thresholds).length ? { thresholds } : {}),
    };
    dialog.close();
    done(made);
  }

  kind.addEventListener("change", choose);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  choose();
  dialog.showModal();
}
