// Polls the collector while the page is visible, and shows when it does not answer.

const state = document.querySelector("#state");
const { queryS, sendS } = document.documentElement.dataset;
// Longer than the collector lets a query run, so that its own words come first.
const ANSWER_MS = 1000 * (Number(queryS) + 10);
/** The deadline of an answer with many rows: sending them may take as long again. */
export const ROWS_MS = ANSWER_MS + 1000 * Number(sendS);

/** Ask for a token, and come back here. */
export function logIn() {
  location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
}

/** What `read` makes of an answer. Without one, or without all of it within `waitMs`: a TypeError with words for people. */
export async function request(path, { signal, waitMs = ANSWER_MS, ...options }, read) {
  const late = AbortSignal.timeout(waitMs);
  try {
    return await read(await fetch(path, { ...options, signal: signal ? AbortSignal.any([signal, late]) : late }));
  } catch (error) {
    if (error.name === "TimeoutError") throw new TypeError(`the collector does not answer within ${Math.round(waitMs / 1000)} s`);
    if (error instanceof TypeError) throw new TypeError("the collector does not answer", { cause: error });
    throw error;
  }
}

/** The page of a path as a document, with its answer; without a token, the page to log in. */
export async function requestPage(path) {
  const options = { headers: { Accept: "text/html" } };
  const { answer, text } = await request(path, options, async (one) => ({ answer: one, text: await one.text() }));
  if (answer.redirected) logIn();
  if (!answer.ok) throw new Error(`the collector answers ${answer.status}`);
  return answer.redirected ? null : new DOMParser().parseFromString(text, "text/html");
}

/** An answer and its JSON, {} where it has none; without a token, the page to log in. */
function requestJson(path, options) {
  const headers = { Accept: "application/json", ...options.headers };
  return request(path, { ...options, headers }, async (answer) => {
    if (answer.status === 401) logIn();
    const said = await answer.json().catch((error) => {
      if (error instanceof SyntaxError) return {};
      throw error;
    });
    return { answer, said };
  });
}

/** JSON of a path. Throws an error for people, with the `status` of the answer. */
export async function ask(path, signal) {
  const { answer, said } = await requestJson(path, { signal });
  if (!answer.ok) throw Object.assign(new Error(said.error ?? `the collector answers ${answer.status}`), { status: answer.status });
  return said;
}

/** Change something by a JSON document; the answer's JSON. An error for people has `status` and what else was answered. */
export async function change(method, path, document_) {
  const body = document_ === undefined ? undefined : JSON.stringify(document_);
  const { answer, said } = await requestJson(path, { method, body, headers: { "Content-Type": "application/json" } });
  if (!answer.ok) throw Object.assign(new Error(said.error ?? `the collector answers ${answer.status}`), said, { status: answer.status });
  return said;
}

/** Whether the reader's token may change annotations. */
export function mayEdit() {
  return ["edit", "operate", "admin"].includes(document.documentElement.dataset.scope);
}

const seen = new Map();

/** As `ask`; null if the answer has not changed since the last time. */
export async function askNew(path) {
  const headers = seen.has(path) ? { "If-None-Match": seen.get(path) } : {};
  const { answer, said } = await requestJson(path, { headers });
  if (answer.status === 304) return null;
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
