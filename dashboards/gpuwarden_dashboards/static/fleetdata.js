// Every GPU of the fleet as typed arrays. A GPU is a number: its place in the order of /v1/map.

const natural = new Intl.Collator("en", { numeric: true });

export class Fleet {
  /** `states`, `levels`: names of the parts of a state. */
  constructor(states, levels) {
    this.terms = { states, levels };
    this.version = null;
    this.size = 0;
    this.values = new Float32Array();
    this.states = new Uint8Array();
    this.silentSince = new Map();
    this.stateNames = Array.from({ length: 64 }, (_, state) => {
      const level = levels[state >> 4];
      return [states[state & 15] ?? "unknown", ...(level === "warning" || level === "critical" ? [level, "alerting"] : [])];
    });
  }

  /** Take /v1/map/names. */
  setNames(names) {
    const sizes = names.kinds.map((kind) => kind.gpus.length);
    this.version = names.version;
    this.nodes = names.nodes;
    this.hosts = names.hosts ?? []; // nodes without a GPU
    this.size = names.kind_of.reduce((sum, kind) => sum + sizes[kind], 0);
    this.most = Math.max(1, ...sizes);
    this.first = new Int32Array(names.nodes.length + 1);
    this.nodeOf = new Int32Array(this.size);
    this.gpuOf = new Int32Array(this.size);
    const models = coded();
    const modelOf = new Int32Array(this.size);
    let at = 0;
    names.kind_of.forEach((kind, node) => {
      this.first[node] = at;
      names.kinds[kind].gpus.forEach((gpu, place) => {
        this.nodeOf[at] = node;
        this.gpuOf[at] = gpu;
        modelOf[at] = models.code(names.kinds[kind].models[place]);
        at += 1;
      });
    });
    this.first[names.nodes.length] = at;
    this.order = names.nodes.map((_, node) => node).sort((a, b) => natural.compare(names.nodes[a], names.nodes[b]));
    this.labels = names.labels;
    this.labelOf = names.label_of;
    this.labelKeys = [...new Set(names.labels.flatMap((labels) => Object.keys(labels)))].sort();
    const ofHolder = (key) => {
      const found = coded();
      const none = found.code("");
      const codes = names.holders.map((holder) => found.code(holder[key] ?? ""));
      return { names: found.names, codes: Int32Array.from({ length: this.size }, (_, gpu) => codes[names.holder_of[gpu] ?? -1] ?? none) };
    };
    this.columns = new Map([
      ["node", { names: names.nodes, codes: this.nodeOf }],
      ["model", { names: models.names, codes: modelOf }],
      ["username", ofHolder("username")],
      ["job", ofHolder("job")],
    ]);
  }

  /** Take /v1/map. False: it has other GPUs than the names, which must be fetched again. */
  setMap(map) {
    if (map.version !== this.version) return false;
    this.colour = map.colour;
    this.unit = map.unit;
    this.values = Float32Array.from({ length: this.size }, (_, at) => (map.values[at] ?? Number.NaN) * map.scale);
    this.states = Uint8Array.from(map.states);
    const silent = this.terms.states.indexOf("not reporting");
    this.silentSince = new Map();
    let number = 0;
    for (let at = 0; at < this.size; at += 1) if ((this.states[at] & 15) === silent) this.silentSince.set(at, map.silent_since_ms[number++] ?? null);
    return true;
  }

  has(key) {
    return this.columns.has(key) || this.labelKeys.some((label) => label.toLowerCase() === key);
  }

  /** Names, and for each GPU the number of its name; "" without a name. */
  column(key) {
    if (key === "state") {
      const names = this.terms.states;
      return { names, codes: this.states.map((state) => state & 15) };
    }
    if (!this.columns.has(key)) {
      const label = this.labelKeys.find((one) => one.toLowerCase() === key.toLowerCase());
      const found = coded();
      const codes = this.labels.map((labels) => found.code(String(labels[label] ?? "")));
      this.columns.set(key, { names: found.names, codes: Int32Array.from(this.nodeOf, (node) => codes[this.labelOf[node]]) });
    }
    return this.columns.get(key);
  }

  name(key, at) {
    const { names, codes } = this.column(key);
    return names[codes[at]] ?? "";
  }

  level(at) {
    return this.states[at] >> 4;
  }

  isSilent(at) {
    return this.silentSince.has(at);
  }

  /** {name, cells} by a key, in the order of their names; the smallest are joined if there are more than `most`. */
  grouped(key, mask, most = 60) {
    const cells = this.cells(mask);
    if (!key) return [{ name: "", cells }];
    const { names, codes } = this.column(key);
    const parts = new Map();
    for (const at of cells) {
      const part = parts.get(codes[at]);
      if (part) part.push(at);
      else parts.set(codes[at], [at]);
    }
    const groups = [...parts].map(([code, part]) => ({ name: names[code], cells: part, code }));
    const kept = new Set([...groups].sort((a, b) => b.cells.length - a.cells.length).slice(0, most));
    const rest = groups.filter((group) => !kept.has(group)).flatMap((group) => group.cells);
    const shown = groups.filter((group) => kept.has(group));
    shown.sort(key === "state" ? (a, b) => b.code - a.code : (a, b) => !a.name - !b.name || natural.compare(a.name, b.name));
    if (rest.length) shown.push({ name: null, cells: rest, count: groups.length - most });
    return shown;
  }

  /** GPUs in the mask, by node in natural order. */
  cells(mask) {
    const found = [];
    for (const node of this.order) for (let at = this.first[node]; at < this.first[node + 1]; at += 1) if (!mask || mask[at]) found.push(at);
    return found;
  }

  /** Nodes with a GPU in the mask, the worst first: alerts, then silence, slow clocks, then what idles. */
  worstNodes(mask) {
    const score = new Float64Array(this.nodes.length).fill(-1);
    const weights = this.terms.states.map((name) => ({ "not reporting": 300, throttled: 30, unknown: 3, idle: 1 })[name] ?? 0);
    for (let at = 0; at < this.size; at += 1) {
      if (mask && !mask[at]) continue;
      const node = this.nodeOf[at];
      const level = this.states[at] >> 4;
      score[node] = Math.max(0, score[node]) + weights[this.states[at] & 15] + (level === 3 ? 1e6 : level === 2 ? 1e4 : 0);
    }
    return this.order.filter((node) => score[node] >= 0).sort((a, b) => score[b] - score[a]);
  }
}

function coded() {
  const codes = new Map();
  const names = [];
  return {
    names,
    code(name) {
      if (!codes.has(name)) {
        codes.set(name, names.length);
        names.push(name);
      }
      return codes.get(name);
    },
  };
}
