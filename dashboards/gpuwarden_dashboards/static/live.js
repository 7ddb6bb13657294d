// Polls the collector while the page is visible, and shows when it does not answer.

const state = document.querySelector("#state");

/** Ask for a token, and come back here. */
export function logIn() {
  location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
}

/** JSON of a path. Throws an error for people, with the `status` of the answer. */
export async function ask(path, signal) {
  const answer = await fetch(path, { signal, headers: { Accept: "application/json" } });
  if (answer.status === 401) logIn();
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error ?? `the collector answers ${answer.status}`), { status: answer.status });
  return said;
}

/** Change something by a JSON document; the answer's JSON. An error for people has `status` and what else was answered. */
export async function change(method, path, document_) {
  const body = document_ === undefined ? undefined : JSON.stringify(document_);
  const answer = await fetch(path, { method, body, headers: { "Content-Type": "application/json", Accept: "application/json" } });
  if (answer.status === 401) logIn();
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error ?? `the collector answers ${answer.status}`), said, { status: answer.status });
  return said;
}

/** Whether the reader's token may change dashboards and annotations. */
export function mayEdit() {
  return ["edit", "admin"].includes(document.documentElement.dataset.scope);
}

const seen = new Map();

/** As `ask`; null if the answer has not changed since the last time. */
export async function askNew(path) {
  const headers = { Accept: "application/json" };
  if (seen.has(path)) headers["If-None-Match"] = seen.get(path);
  const answer = await fetch(path, { headers });
  if (answer.status === 304) return null;
  if (answer.status === 401) logIn();
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error ?? `the collector answers ${answer.status}`);
  seen.set(path, answer.headers.get("ETag"));
  return said;
}

/** Call `look` now and at intervals while the page is visible. */
export function live(everyMs, look) {
  let timer = null;
  let busy = false;
  async function turn() {
    clearTimeout(timer);
    if (document.hidden || busy) return;
    busy = true;
    try {
      await look();
      state.textContent = "";
      state.hidden = true;
    } catch (error) {
      if (error.name === "AbortError") return;
      state.textContent =
        error instanceof TypeError ? "The collector does not answer: this page shows old data." : `This page shows old data: ${error.message}`;
      state.hidden = false;
    } finally {
      busy = false;
      timer = setTimeout(turn, everyMs);
    }
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return turn;
}
