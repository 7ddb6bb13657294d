// The list of silences: creates, repeats and ends them.

import { page, replace } from "./fresh.js";
import { live } from "./live.js";
import { end, mayChange, said, silence } from "./silencing.js";

const did = document.querySelector("#did");
const again = live(5000, async () => {
  const found = await page();
  if (!found) return;
  replace(found, "list");
  mayChange();
});

function after(text) {
  did.textContent = text;
  again();
}

// A link to silence something has its matchers.
const given = JSON.parse(document.querySelector("#actions").dataset.matchers);
if (given.length && mayChange()) silence(given, (made) => after(said(made)));

document.addEventListener("click", async (event) => {
  const { id, dataset } = event.target;
  if (id === "silence") silence(JSON.parse(document.querySelector("#actions").dataset.matchers), (made) => after(said(made)));
  else if (dataset?.again) silence(JSON.parse(dataset.again), (made) => after(said(made)));
  else if (dataset?.silence) {
    event.target.disabled = true;
    await end(dataset.silence).then(() => after("ended"), (error) => after(error.message));
  }
});
