// Acknowledges and silences alerts through the collector's API, for readers whose token allows it.

import { make } from "./elements.js";
import { ask, change } from "./live.js";
import { minute } from "./times.js";

const dialog = document.querySelector("#ask");
const part = (name) => dialog.querySelector(`#ask-${name}`);
let previewing = null;
let send = null;

/** Whether the reader's token allows it; otherwise `#may` says why, and the buttons are disabled. */
export function mayChange() {
  const may = ["operate", "admin"].includes(document.documentElement.dataset.scope);
  for (const place of document.querySelectorAll("#may")) {
    place.textContent = may ? "" : "Your token may only read: log in with one of scope operate to acknowledge and silence.";
  }
  for (const button of document.querySelectorAll("#ack, #silence, [data-silence], [data-again]")) button.disabled = !may;
  return may;
}

/** End a silence or an acknowledgement now. */
export const end = (id) => change("DELETE", `/v1/silences/${encodeURIComponent(id)}`);

async function preview() {
  previewing?.abort();
  previewing = new AbortController();
  const covered = part("covered");
  const asked = new URLSearchParams(matchers().map((text) => ["matcher", text]));
  try {
    const found = await ask(`/v1/silences/preview?${asked}`, previewing.signal);
    covered.className = "soft";
    covered.textContent = `Covers ${found.alerts} ${found.alerts === 1 ? "alert" : "alerts"} now${found.alerts > 8 ? ", among them:" : found.alerts ? ":" : "; it will cover new ones that match."}`;
    covered.append(make("ul", {}, found.covered.slice(0, 8).map((alert) => make("li", {}, alert.summary))));
  } catch (error) {
    if (error.name === "AbortError") return;
    covered.className = "failed";
    covered.textContent = error.message;
  }
}

const matchers = () => part("matchers").value.split("\n").map((line) => line.trim()).filter(Boolean);

function open(title, about, button, isSilence) {
  part("title").textContent = title;
  part("about").textContent = about;
  part("send").textContent = button;
  part("what").hidden = part("covered").hidden = !isSilence;
  part("failed").hidden = true;
  part("comment").value = "";
  dialog.showModal();
  part("for").focus();
}

const common = () => ({ for: part("for").value, comment: part("comment").value.trim() });

/** Ask for duration and reason, and acknowledge these alerts; calls `done` with the answers. */
export function acknowledge(fingerprints, about, done) {
  open("Acknowledge", about, "acknowledge", false);
  send = async () => done(await Promise.all(fingerprints.map((fingerprint) => change("POST", "/v1/silences", { fingerprint, ...common() }))));
}

/** The same for a silence by matchers. */
export function silence(texts, done) {
  open("Silence", "Alerts that match notify nobody, new ones too.", "silence", true);
  part("matchers").value = texts.join("\n");
  preview();
  send = async () => done([await change("POST", "/v1/silences", { matchers: matchers(), ...common() })]);
}

/** The answers as a sentence. */
export function said(made) {
  return `${made[0].fingerprint ? "acknowledged" : "silenced"} until ${minute(Date.parse(made[0].ends_at))}`;
}

async function submit() {
  if (!dialog.querySelector("form").reportValidity()) return;
  part("send").disabled = true;
  try {
    await send();
    dialog.close();
  } catch (error) {
    part("failed").textContent = error.message;
    part("failed").hidden = false;
  } finally {
    part("send").disabled = false;
  }
}

let soon = null;
part("matchers").addEventListener("input", () => {
  clearTimeout(soon);
  soon = setTimeout(preview, 300);
});
part("send").addEventListener("click", submit);
dialog.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.tagName === "INPUT") {
    event.preventDefault();
    submit();
  }
});
