// Shows times in the reader's own zone, or in UTC if the reader chose so, which this browser keeps.
//
// The server writes UTC as `<time datetime data-form>`, which is rewritten here; fields of `form.zoned` are in the
// reader's zone and are sent as UTC. Elements `.zone` have the zone's name.

const KEY = "gpuwarden-zone";
const FORMS = { minute: [0, 16, true], second: [0, 19, true], clock: [11, 16, true], row: [0, 19, false], moment: [5, 19, false], short: [5, 16, false] };
const button = document.querySelector("#zone");
const names = new Map();
let isUtc = localStorage.getItem(KEY) === "utc";

const aheadMs = (ms) => (isUtc ? 0 : -60e3 * new Date(ms).getTimezoneOffset());

/** The reader's clock at a time, as if it were UTC: milliseconds. */
export const wall = (ms) => ms + aheadMs(ms);

/** The time at which the reader's clock shows this. */
export const fromWall = (ms) => ms - aheadMs(ms - aheadMs(ms));

/** The same as text: `2026-03-01T12:00:00.000`. */
const wallText = (ms) => new Date(wall(ms)).toISOString().slice(0, -1);

/** The zone's name at a time: UTC, GMT+2, EST. */
export function zoneName(ms = Date.now()) {
  const ahead = aheadMs(ms);
  if (isUtc || !ahead) return "UTC";
  if (!names.has(ahead)) {
    const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(ms);
    names.set(ahead, parts.find((part) => part.type === "timeZoneName").value);
  }
  return names.get(ahead);
}

/** The parts of a date that the span needs. */
export function clock(ms, spanMs) {
  const text = wallText(ms);
  if (spanMs > 120 * 86400e3) return text.slice(0, 10);
  if (spanMs > 2 * 86400e3) return text.slice(5, 16).replace("T", " ");
  if (spanMs > 600e3) return text.slice(11, 16);
  return text.slice(11, 19);
}

/** A time in full. */
export function stamp(ms) {
  return wallText(ms).slice(0, 19).replace("T", " ");
}

/** A time to the minute, with its zone. */
export function minute(ms) {
  return `${stamp(ms).slice(0, 16)} ${zoneName(ms)}`;
}

/** Show a time in a field for a date and a time. */
export function setField(field, ms) {
  field.value = wallText(ms).slice(0, 16);
  [field.dataset.shown, field.dataset.ms] = [field.value, ms];
}

/** The time in such a field: what nobody changed stays the same time, also in an hour that comes twice. */
export function timeIn(field) {
  return field.value === field.dataset.shown ? Number(field.dataset.ms) : fromWall(Date.parse(`${field.value}Z`));
}

/** Rewrite the times in an element that the server wrote. */
export function rewrite(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const ms = Date.parse(element.dateTime);
    const [from, to, hasZone] = FORMS[element.dataset.form] ?? FORMS.minute;
    element.title ||= `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    element.textContent = wallText(ms).slice(from, to).replace("T", " ") + (hasZone ? ` ${zoneName(ms)}` : "");
  }
  for (const field of root.querySelectorAll("form.zoned input[type=datetime-local]")) {
    if (field.dataset.ms || field.defaultValue) setField(field, Number(field.dataset.ms ?? Date.parse(`${field.defaultValue}Z`)));
  }
  for (const element of root.querySelectorAll(".zone")) element.textContent = zoneName(timeBeside(element));
}

/** The time whose zone an element `.zone` tells: of the field of its form, of the first row of its table, or now. */
function timeBeside(element) {
  const field = element.closest("form")?.querySelector("input[type=datetime-local]");
  const time = element.closest("table")?.querySelector("time[datetime]");
  return (field?.value ? timeIn(field) : time && Date.parse(time.dateTime)) || Date.now();
}

function apply() {
  const ours = isUtc ? "UTC" : zoneName();
  button.textContent = ours;
  button.title = isUtc ? "Times are UTC. Change to your own time zone." : `Times are in your time zone (${Intl.DateTimeFormat().resolvedOptions().timeZone}). Change to UTC.`;
  button.setAttribute("aria-label", button.title);
  rewrite(document);
}

button.addEventListener("click", () => {
  isUtc = !isUtc;
  localStorage.setItem(KEY, isUtc ? "utc" : "own");
  apply();
  dispatchEvent(new Event("zonechange"));
});
document.addEventListener("submit", ({ target }) => {
  if (!target.matches("form.zoned")) return;
  const fields = [...target.querySelectorAll("input[type=datetime-local]")];
  for (const field of fields) {
    const shown = field.value;
    if (!shown) continue;
    field.value = new Date(timeIn(field)).toISOString().slice(0, 16);
    // The address is UTC; what the reader sees is not, also when the browser comes back to this page.
    setTimeout(() => (field.value = shown));
  }
});
// Where the reader's zone is UTC there is nothing to choose.
button.hidden = !isUtc && zoneName() === "UTC" && zoneName(Date.now() + 182 * 86400e3) === "UTC";
apply();
