// Bursts of a GPU: those that are stored, and a form that asks its agent for one. Asked for when somebody opens the list.

import { make } from "./elements.js";
import { ask, change, mayEdit } from "./live.js";
import { sparkline } from "./sparkline.js";
import { stamp } from "./times.js";
import { plain } from "./topology.js";

const POLL_MS = 1500;
const UNITS = { power_watts: "W", util_percent: "%", memory_util_percent: "%", sm_clock_mhz: "MHz", memory_clock_mhz: "MHz", temperature_celsius: "°C" };
const round = (value) => value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

/** `place`: node and gpu_uuid. */
export function showBursts(details, place) {
  const [form, status, list] = [details.querySelector("form"), details.querySelector("[role=status]"), details.querySelector("div")];
  const path = `/v1/gpus/${encodeURIComponent(place.gpu_uuid)}/bursts`;
  form.hidden = !mayEdit();

  async function look() {
    const { bursts } = await ask(path);
    if (!bursts.length) status.textContent = "None in the last week.";
    list.replaceChildren(...bursts.map(described));
    return bursts;
  }

  details.addEventListener("toggle", () => {
    if (details.open) look().catch((error) => (status.textContent = error.message));
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      await record(Number(form.elements.hz.value), Number(form.elements.seconds.value));
    } catch (error) {
      status.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });

  async function record(hz, seconds) {
    const asked = await change("POST", "/v1/bursts", { node: place.node, gpu_uuid: place.gpu_uuid, hz, seconds });
    const until = Date.now() + (60 + seconds + 30) * 1000;
    while (Date.now() < until) {
      const { state } = await ask(`/v1/bursts/${asked.id}`);
      if (state === "expired") throw new Error("The agent sent this collector no batch within a minute, so it does not know of the request.");
      status.textContent = state === "waiting" ? "The agent gets the request with its next batch." : `The agent reads for ${seconds} s, then sends.`;
      if (state === "handed out" && (await look()).some((one) => one.burst === asked.id)) {
        await wait(POLL_MS);
        await look(); // the rest of its batches
        status.textContent = "";
        return;
      }
      await wait(POLL_MS);
    }
    throw new Error("No samples came: what happened, above, says whether the agent refused or stopped.");
  }
}

function described(burst) {
  const rows = burst.lines.map((line) => [
    line.metric, line.source, round(line.samples), `${round(line.least)} ${UNITS[line.metric] ?? ""}`, round(line.mean), round(line.p95), round(line.greatest),
    `${round(line.least_second)} to ${round(line.greatest_second)}`,
  ]);
  const images = burst.lines.filter((line) => line.greatest > line.least).map((line) =>
    make("figure.burst", {}, make("figcaption.soft", {}, `${line.metric.replace(/_/g, " ")}, ${line.source}: ${round(line.least)} to ${round(line.greatest)} ${UNITS[line.metric] ?? ""}`),
      sparkline(line.values, { least: Math.min(0, line.least), greatest: line.greatest * 1.02, label: `${line.metric} from ${round(line.least)} to ${round(line.greatest)}` })));
  return make("section.card", { "aria-label": `Burst ${burst.burst}` },
    make("h3", {}, `${stamp(burst.begin_ms)}, ${round((burst.end_ms - burst.begin_ms) / 1000)} s`),
    ...images, plain(`Burst ${burst.burst}`, ["metric", "from", "samples", "least", "mean", "95 %", "most", "means of a second"], rows));
}
