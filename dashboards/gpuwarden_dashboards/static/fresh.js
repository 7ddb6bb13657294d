// Refreshes parts of a page from the collector, and keeps what is open and focused.

import { requestPage } from "./live.js";
import { rewrite } from "./times.js";

/** The page of this address as it is now; null: the browser leaves the page. Throws an error for people. */
export async function page() {
  const found = await requestPage(location.pathname + location.search);
  if (!found) return null;
  const version = (one) => one.querySelector("meta[name=version]")?.content;
  if (version(found) === version(document)) return found;
  location.reload();
  return null;
}

/** Replace the element with this id by the one of the fresh page. */
export function replace(found, id) {
  const [before, after] = [document.getElementById(id), found.getElementById(id)];
  if (after) rewrite(after);
  if (!before || !after || before.innerHTML === after.innerHTML) return;
  const open = new Set([...before.querySelectorAll("details[open]")].map((one) => one.id));
  const picked = new Set([...before.querySelectorAll("input:checked")].map((one) => one.value));
  const focus = before.contains(document.activeElement) ? document.activeElement : null;
  const number = [...before.querySelectorAll("a, button, input, summary")].indexOf(focus);
  for (const one of after.querySelectorAll("details")) one.open = open.has(one.id);
  for (const one of after.querySelectorAll("input[type=checkbox]")) one.checked = picked.has(one.value);
  before.replaceWith(after);
  if (focus) (document.getElementById(focus.id) ?? after.querySelectorAll("a, button, input, summary")[number])?.focus({ preventScroll: true });
}
