// Draws how the GPUs of a node are connected as SVG, and says the same in tables.

import { readable } from "./chart.js";
import { folded, shape as make } from "./elements.js";
import { plainTable, scrolling } from "./result.js";

const WIDTH = 960;

function shape(parent, name, attributes, text) {
  const made = make(name, attributes, text);
  parent.append(made);
  return made;
}

const pcieOf = (gpu) => (gpu.pcie_generation === null && gpu.pcie_width === null ? "PCIe not read" : `PCIe ${gpu.pcie_generation ?? "?"}.0 x${gpu.pcie_width ?? "?"}`);
const total = (values) => (values.some((value) => value !== null) ? values.reduce((sum, value) => sum + (value ?? 0), 0) : null);
const rate = (value) => readable(value, "bytes_per_second");
const bits = (value) => (value === null ? "no rate" : `${Math.round(value / 1e9)} Gb/s`);
const wrong = (errors) => Object.entries(errors).map(([name, count]) => `${count} ${name.replace(/_total$/, "").replace(/_/g, " ")}`).join(", ");

/** The links of a GPU to one other end, summed up. */
export function bundles(links) {
  const found = new Map();
  for (const link of links) {
    const key = `${link.gpu_uuid} ${link.remote_pci_bus_id ?? link.remote_type ?? "?"}`;
    if (!found.has(key)) found.set(key, { gpu_uuid: link.gpu_uuid, type: link.link_type, remote: link.remote_pci_bus_id, remoteType: link.remote_type, links: [] });
    found.get(key).links.push(link);
  }
  return [...found.values()].map((one) => {
    const errors = {};
    for (const link of one.links) for (const [name, count] of Object.entries(link.errors)) errors[name] = (errors[name] ?? 0) + count;
    const up = one.links.filter((link) => link.active).length;
    const down = one.links.filter((link) => link.active === false).length;
    return {
      ...one, errors, up, down,
      state: down ? "down" : Object.keys(errors).length ? "errors" : up ? "up" : "unknown",
      tx: total(one.links.map((link) => link.tx_bytes_per_second)),
      rx: total(one.links.map((link) => link.rx_bytes_per_second)),
      speed: total(one.links.map((link) => link.speed_bytes_per_second)),
    };
  });
}

function tip(element, text) {
  shape(element, "title", {}, text);
}

function box(svg, x, y, width, height, lines, classes, link) {
  const parent = link ? shape(svg, "a", { href: link, "aria-label": lines.join(", ") }) : svg;
  const made = shape(parent, "g", { class: classes });
  shape(made, "rect", { x, y, width, height, rx: 5 });
  lines.forEach((line, number) => shape(made, "text", { x: x + width / 2, y: y + 15 + 14 * number, class: number ? "minor" : "" }, line));
  return made;
}

/** Draw into an element; `chosen` is the GPU that the page is about. */
export function draw(place, data, chosen) {
  const { gpus, links, ports, ways } = data;
  if (!gpus.length) return;
  const groups = bundles(links);
  const far = [...new Set(groups.filter((one) => one.remoteType !== "gpu").map((one) => one.remote ?? one.remoteType ?? "?"))].sort();
  const numas = [...new Set([...gpus, ...ports.filter((port) => port.numa_node !== null)].map((one) => one.numa_node))].sort();
  const gpuWidth = Math.min(110, WIDTH / gpus.length - 8);
  const gpuX = (number) => ((number + 0.5) * WIDTH) / gpus.length;
  const gpuY = far.length ? 130 : 50;
  const hostY = gpuY + 170;
  const height = hostY + 50 + (ports.length ? 70 : 0);
  const trouble = groups.filter((one) => one.state === "down" || one.state === "errors").length;
  const label = `${gpus.length} GPUs, ${links.length} links, ${trouble ? `trouble on the way to ${trouble} ends` : "no trouble"}; the tables below have all of it`;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "topology", role: "group", "aria-label": label });
  const at = new Map(gpus.map((gpu, number) => [gpu.gpu_uuid, gpuX(number)]));
  const byBus = new Map(gpus.map((gpu) => [gpu.pci_bus_id, gpu]));
  const farX = new Map(far.map((name, number) => [name, ((number + 0.5) * WIDTH) / far.length]));

  for (const one of groups) {
    const from = at.get(one.gpu_uuid);
    if (from === undefined) continue;
    const peer = byBus.get(one.remote);
    const to = peer ? at.get(peer.gpu_uuid) : farX.get(one.remote ?? one.remoteType ?? "?");
    if (to === undefined) continue;
    const path = peer ? `M${from} ${gpuY} Q${(from + to) / 2} ${gpuY - 60} ${to} ${gpuY}` : `M${from} ${gpuY} L${to} 50`;
    const dim = chosen && one.gpu_uuid !== chosen ? " dim" : "";
    const load = one.speed ? ((one.tx ?? 0) + (one.rx ?? 0)) / (2 * one.speed) : 0;
    const line = shape(svg, "path", { d: path, class: `link ${one.state}${dim}`, "stroke-width": 1 + 5 * Math.min(1, load) });
    tip(line, said(one, byBus));
  }
  far.forEach((name, number) => {
    const one = groups.find((each) => (each.remote ?? each.remoteType ?? "?") === name);
    const what = { switch: `NVSwitch ${number + 1}`, cpu: "CPU (C2C)" }[one.remoteType] ?? "other end";
    box(svg, farX.get(name) - 60, 14, 120, 36, [what, name], "far");
  });
  gpus.forEach((gpu, number) => {
    const mine = groups.filter((one) => one.gpu_uuid === gpu.gpu_uuid);
    const up = total(mine.map((one) => one.up));
    const known = mine.reduce((sum, one) => sum + one.links.length, 0);
    const slow = gpu.pcie_width !== null && gpu.pcie_width_max !== null && gpu.pcie_width < gpu.pcie_width_max;
    const lines = [`GPU ${gpu.gpu}`, known ? `${up} of ${known} links up` : "no links read"];
    if (known) lines.push(`tx ${rate(total(mine.map((one) => one.tx)))}`, `rx ${rate(total(mine.map((one) => one.rx)))}`);
    if (gpu.mig.length) lines.push(`${gpu.mig.length} MIG devices`);
    const state = mine.some((one) => one.state === "down") ? " bad" : "";
    box(svg, gpuX(number) - gpuWidth / 2, gpuY, gpuWidth, 78, lines, `device${gpu.gpu_uuid === chosen ? " chosen" : ""}${state}`, `/gpus/${encodeURIComponent(gpu.gpu_uuid)}`);
    const ours = numas.indexOf(gpu.numa_node);
    const hostX = ((ours + 0.5) * WIDTH) / numas.length;
    const bus = shape(svg, "path", { d: `M${gpuX(number)} ${gpuY + 78} L${hostX} ${hostY}`, class: `pcie${slow ? " errors" : ""}` });
    tip(bus, pcie(gpu));
    shape(svg, "text", { x: gpuX(number), y: gpuY + 94, class: "minor" }, pcieOf(gpu));
  });
  numas.forEach((numa, number) => {
    box(svg, ((number + 0.5) * WIDTH) / numas.length - 80, hostY, 160, 30, [numa === null ? "host" : `NUMA node ${numa}`], "far");
  });
  ports.forEach((port, number) => {
    const width = Math.min(110, WIDTH / ports.length - 8);
    const x = ((number + 0.5) * WIDTH) / ports.length - width / 2;
    const bad = (port.state ?? "active") !== "active" || Object.keys(port.errors).length > 0;
    const socket = numas.indexOf(port.numa_node);
    if (socket >= 0 && port.numa_node !== null) shape(svg, "path", { d: `M${x + width / 2} ${hostY + 50} L${((socket + 0.5) * WIDTH) / numas.length} ${hostY + 30}`, class: "pcie" });
    const made = box(svg, x, hostY + 50, width, 52, [port.device, `${port.state ?? "?"} ${bits(port.rate_bits_per_second)}`, `tx ${rate(port.tx_bytes_per_second)}`], `far${bad ? " bad" : ""}`);
    tip(made, `${port.device} port ${port.port}: ${port.state ?? "?"}, ${port.physical_state ?? "?"}; rx ${rate(port.rx_bytes_per_second)}; ${wrong(port.errors) || "no errors in the last hour"}`);
  });
  fill(place, scrolling("Map of links", svg), ...tables(gpus, groups, ports, ways, byBus));
}

/** Replace the content of an element; open tables stay open. */
export function fill(place, ...made) {
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  for (const one of made) if (open.has(one.dataset.key)) one.open = true;
  place.replaceChildren(...made);
}

function said(one, byBus) {
  const peer = byBus.get(one.remote);
  const end = peer ? `GPU ${peer.gpu}` : `${one.remoteType ?? "?"} ${one.remote ?? ""}`;
  return `${one.up} of ${one.links.length} ${one.type} links to ${end} up; tx ${rate(one.tx)}, rx ${rate(one.rx)} of ${rate(one.speed)}; ${wrong(one.errors) || "no errors in the last hour"}`;
}

function pcie(gpu) {
  const of = gpu.pcie_generation_max ? ` of ${gpu.pcie_generation_max}.0 x${gpu.pcie_width_max}` : "";
  return `GPU ${gpu.gpu}: ${pcieOf(gpu)}${of}; rx ${rate(gpu.pcie_rx_bytes_per_second)}, tx ${rate(gpu.pcie_tx_bytes_per_second)}`;
}

function tables(gpus, groups, ports, ways, byBus) {
  const name = new Map(gpus.map((gpu) => [gpu.gpu_uuid, `GPU ${gpu.gpu}`]));
  const found = [];
  if (groups.length) {
    found.push(table("links as a table", ["GPU", "to", "up", "speed", "tx", "rx", "errors in the last hour"], groups.map((one) => [
      name.get(one.gpu_uuid) ?? one.gpu_uuid,
      byBus.has(one.remote) ? `GPU ${byBus.get(one.remote).gpu}` : `${one.remoteType ?? "?"} ${one.remote ?? ""}`,
      `${one.up} of ${one.links.length}`, rate(one.speed), rate(one.tx), rate(one.rx), wrong(one.errors) || "none",
    ])));
  }
  const beside = (gpu) => [...new Set(ports.filter((port) => port.numa_node !== null && port.numa_node === gpu.numa_node).map((port) => port.device))];
  found.push(table("PCIe as a table", ["GPU", "bus id", "NUMA node", "its CPUs", "its adapters", "now", "possible", "rx", "tx"], gpus.map((gpu) => [
    `GPU ${gpu.gpu}`, gpu.pci_bus_id ?? "–", gpu.numa_node ?? "–", gpu.cpu_affinity ?? "–", beside(gpu).join(", ") || "–", `${gpu.pcie_generation ?? "?"}.0 x${gpu.pcie_width ?? "?"}`,
    gpu.pcie_generation_max ? `${gpu.pcie_generation_max}.0 x${gpu.pcie_width_max}` : "–", rate(gpu.pcie_rx_bytes_per_second), rate(gpu.pcie_tx_bytes_per_second),
  ])));
  if (ways.length) {
    const way = new Map(ways.map(([from, to, what]) => [`${from} ${to}`, what]));
    found.push(table("ways between GPUs (nvidia-smi topo -m)", ["", ...gpus.map((gpu) => `GPU ${gpu.gpu}`)], gpus.map((from) => [
      `GPU ${from.gpu}`, ...gpus.map((to) => (from === to ? "X" : (way.get(`${from.gpu} ${to.gpu}`) ?? "–"))),
    ])));
  }
  if (ports.length) {
    found.push(table("network adapters as a table", ["port", "NUMA node", "layer", "state", "rate", "tx", "rx", "errors in the last hour"], ports.map((port) => [
      `${port.device}/${port.port}`, port.numa_node ?? "–", port.link_layer ?? "–", `${port.state ?? "–"} (${port.physical_state ?? "–"})`, bits(port.rate_bits_per_second),
      rate(port.tx_bytes_per_second), rate(port.rx_bytes_per_second), wrong(port.errors) || "none",
    ])));
  }
  return found;
}

/** A table that opens. */
function table(title, heading, rows) {
  const details = folded(title, plain(title, heading, rows));
  details.className = "table";
  details.dataset.key = title;
  return details;
}

/** A table that can be scrolled; the texts of column `long` are on several lines. */
export function plain(title, heading, rows, long = -1) {
  return scrolling(title, plainTable(heading, rows, (_text, column) => (column === long ? "text" : "")));
}
