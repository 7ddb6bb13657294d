// Puts a chart or a result onto a dashboard, from any page.

import { make } from "./elements.js";
import { ask, change, mayEdit } from "./live.js";

/** Name in the address for a title: "Training, team A" -> training-team-a. */
export function nameOf(title) {
  const plain = title.normalize("NFKD").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  return plain || "dashboard";
}

export const pathOf = (name) => `/v1/dashboards/${encodeURIComponent(name)}`;

/** A new dashboard under a name that is free; its name. Throws an error for people. */
export async function create(dashboard) {
  const name = nameOf(String(dashboard?.title ?? ""));
  for (let number = 1; ; number += 1) {
    const tried = number === 1 ? name : `${name.slice(0, 58)}-${number}`;
    try {
      await change("PUT", `${pathOf(tried)}?version=0`, dashboard);
      return tried;
    } catch (error) {
      // Status 409 with a newest version: the name is taken.
      if (error.status !== 409 || !error.newest || number === 99) throw error;
    }
  }
}

/** Add a panel at the end of a dashboard. Throws an error for people. */
async function append(name, panel) {
  for (let tries = 2; ; tries -= 1) {
    const found = await ask(pathOf(name));
    const { title, panels } = found.dashboard;
    try {
      return await change("PUT", `${pathOf(name)}?version=${found.newest}`, { title, panels: [...panels, panel] });
    } catch (error) {
      // Somebody saved meanwhile: a panel at the end is right in theirs too.
      if (error.status !== 409 || !tries) throw error;
    }
  }
}

async function open(panel, opener) {
  const { dashboards } = await ask("/v1/dashboards");
  const title = make("input", { name: "title", required: true, maxlength: 80, value: panel.title });
  const where = make("select", { name: "where" }, dashboards.map((one) => make("option", { value: one.name }, one.title)), make("option", { value: "" }, "a new dashboard"));
  const fresh = make("input", { name: "fresh", maxlength: 80, placeholder: "its title" });
  const freshly = make("label", {}, "title of the dashboard ", fresh);
  const outcome = make("p", { role: "status" });
  const cancel = make("button", { type: "button", click: () => dialog.close() }, "close");
  const dialog = make("dialog", { "aria-label": "Pin to a dashboard" },
    make("form", { submit: save }, make("h2", {}, "Pin to a dashboard"),
      make("label", {}, "title of the panel ", title), make("label", {}, "dashboard ", where), freshly, outcome,
      make("div.row", {}, make("button.main", {}, "pin"), cancel)));

  function choose() {
    freshly.hidden = where.value !== "";
    fresh.required = where.value === "";
  }

  async function save(event) {
    event.preventDefault();
    const pinned = { ...panel, title: title.value };
    try {
      const name = where.value || (await create({ title: fresh.value, panels: [pinned] }));
      if (where.value) await append(name, pinned);
      outcome.className = "";
      outcome.replaceChildren("pinned: ", make("a", { href: `/dashboards/${name}` }, "open the dashboard"));
      event.submitter.disabled = true;
    } catch (error) {
      outcome.className = "failed";
      outcome.textContent = error.problems ? error.problems.join("\n") : error.message;
    }
  }

  where.addEventListener("change", choose);
  dialog.addEventListener("close", () => {
    dialog.remove();
    opener.focus();
  });
  document.body.append(dialog);
  choose();
  dialog.showModal();
}

/** A button that pins the panel that `panelOf` gives; null where the reader may not. */
export function pinButton(text, panelOf) {
  if (!mayEdit()) return null;
  const button = make("button.pin", { type: "button" }, text);
  button.addEventListener("click", () => open(panelOf(), button).catch((error) => {
    button.textContent = error.message;
  }));
  return button;
}
