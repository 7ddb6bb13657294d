// The list of dashboards: opens, makes, imports and restores them.

import { counted, make } from "./elements.js";
import { ask, change, mayEdit } from "./live.js";
import { create, pathOf } from "./pin.js";
import { minute } from "./times.js";

const part = (id) => document.querySelector(`#${id}`);
const outcome = part("outcome");

function failed(error) {
  outcome.textContent = error.problems ? error.problems.join("\n") : error.message;
}

const go = (name, more = "") => {
  location.href = `/dashboards/${name}${more}`;
};

function row(one) {
  const by = [one.author, minute(Date.parse(one.saved_at))].filter(Boolean).join(", ");
  return make("tr", {},
    make("th", { scope: "row" }, make("a", { href: `/dashboards/${one.name}` }, one.title)),
    make("td.number", {}, String(one.panels)), make("td.number", {}, String(one.version)), make("td", {}, by));
}

function restorable(one) {
  const restore = async () => {
    const { versions } = await ask(`${pathOf(one.name)}/versions`);
    const last = versions.find((each) => !each.deleted);
    if (!last) throw new Error(`no version of ${one.name} is kept`);
    const { dashboard } = await ask(`${pathOf(one.name)}?version=${last.version}`);
    await change("PUT", `${pathOf(one.name)}?version=0`, dashboard);
    go(one.name);
  };
  const when = `deleted ${minute(Date.parse(one.saved_at))}${one.author ? ` by ${one.author}` : ""}`;
  return make("li", {}, one.title, " ", make("span.soft", {}, when), " ",
    mayEdit() ? make("button.plain", { type: "button", "aria-label": `restore ${one.title}`, click: () => restore().catch(failed) }, "restore") : null);
}

async function show() {
  const { dashboards, deleted } = await ask("/v1/dashboards");
  const heads = [["th", "title"], ["th.number", "panels"], ["th.number", "version"], ["th", "saved"]];
  const table = make("table", {}, make("thead", {}, make("tr", {}, heads.map(([kind, text]) => make(kind, { scope: "col" }, text)))),
    make("tbody", {}, dashboards.map(row)));
  part("listed").replaceChildren(dashboards.length
    ? make("div.scroll", { tabindex: 0, role: "region", "aria-label": "Dashboards" }, table)
    : make("p", {}, "There is no dashboard yet."));
  part("begin").hidden = dashboards.length > 0;
  part("gone").hidden = !deleted.length;
  part("gone").querySelector("summary").textContent = `${counted(deleted.length, "deleted dashboard")}, kept for 30 days`;
  part("gone").querySelector("ul").replaceChildren(...deleted.map(restorable));
}

part("example").addEventListener("click", () => {
  create(JSON.parse(part("prepared").textContent)).then((name) => go(name)).catch(failed);
});
part("new").addEventListener("submit", (event) => {
  event.preventDefault();
  create({ title: event.target.elements.title.value, panels: [] }).then((name) => go(name, "?edit=1")).catch(failed);
});
part("import").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const text = await event.target.elements.file.files[0].text();
    let document_;
    try {
      document_ = JSON.parse(text);
    } catch {
      throw new Error("the file is not JSON: export a dashboard to see what one is like");
    }
    go(await create(document_));
  } catch (error) {
    failed(error);
  }
});
part("make").hidden = !mayEdit();
part("example").hidden = !mayEdit();
part("readonly").hidden = mayEdit();
addEventListener("zonechange", () => show().catch(failed));
show().catch(failed);
