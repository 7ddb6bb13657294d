// The list of incidents or alerts: kept up to date, and acknowledged from.

import { page, replace } from "./fresh.js";
import { live, requestPage } from "./live.js";
import { acknowledge, mayChange } from "./silencing.js";

const filters = document.querySelector("#filters");
if (innerWidth > 1024) document.querySelector("#filter").open = true;
const isIncidents = location.pathname === "/incidents";
const may = mayChange();

const again = live(5000, async () => {
  const found = await page();
  if (!found) return;
  replace(found, "stages");
  replace(found, "list");
  document.title = found.title;
  enable();
});

const picked = () => [...document.querySelectorAll("input[name=pick]:checked")].map((one) => one.value);

function enable() {
  const button = document.querySelector("#ack");
  if (!button) return;
  mayChange();
  button.disabled = !may || picked().length === 0;
  button.textContent = picked().length ? `acknowledge ${picked().length}…` : "acknowledge…";
  const all = [...document.querySelectorAll("input[name=pick]")];
  document.querySelector("#all").checked = all.length > 0 && all.every((one) => one.checked);
}

/** The alerts that stand for an incident, as its page has them. */
async function roots(id) {
  const found = await requestPage(`/incidents/${id}`);
  return (found?.querySelector("#actions")?.dataset.fingerprints ?? "").split(",").filter(Boolean);
}

document.addEventListener("change", (event) => {
  if (event.target.id === "all") for (const one of document.querySelectorAll("input[name=pick]")) one.checked = event.target.checked;
  if (event.target.closest("#list")) enable();
});
document.addEventListener("click", async (event) => {
  if (event.target.id !== "ack") return;
  const chosen = picked();
  let fingerprints = chosen;
  try {
    if (isIncidents) fingerprints = (await Promise.all(chosen.map(roots))).flat();
  } catch (error) {
    document.querySelector("#may").textContent = `Nothing is acknowledged: ${error.message}.`;
    return;
  }
  acknowledge([...new Set(fingerprints)], `${chosen.length} ${isIncidents ? "incident" : "alert"}${chosen.length === 1 ? "" : "s"}: no notifications until then.`, () => setTimeout(again, 300));
});
// Leave empty fields out of the address, which people share.
filters.addEventListener("submit", () => {
  const at = filters.elements.at.value;
  const usual = { since: "7d", state: at ? "all" : isIncidents ? "open" : "firing" };
  // A new time leads to all that was open then.
  const shown = filters.elements.at.dataset.shown ?? filters.elements.at.defaultValue;
  if (at && at !== shown) filters.elements.state.value = "all";
  for (const field of filters.elements) if (field.name && (!field.value || field.value === usual[field.name])) field.disabled = true;
});
addEventListener("pageshow", () => {
  for (const field of filters.elements) field.disabled = false;
});
filters.elements.since.addEventListener("change", () => filters.requestSubmit());
enable();
