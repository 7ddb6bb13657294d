// Turns a result into lines over time, and names lines.

/** A metric in a legend: `memory.used_bytes` -> used. */
export function shortName(metric) {
  return metric.replace(/^[a-z]+\./, "").replace(/_(percent|watts|celsius|bytes|mhz|bytes_total|bytes_per_second)$/, "").replace(/_/g, " ");
}

/** A line of a chart of these metrics. `isOne`: all is of one GPU; `node`: all is of this node. */
export function lineName(line, metrics, { isOne, node }) {
  const of = isOne ? "" : line.gpu === null ? (node ? "" : line.node) : node ? `GPU ${line.gpu}` : `${line.node} ${line.gpu}`;
  return [metrics.length > 1 ? shortName(line.metric) : "", of, line.part].filter(Boolean).join(" ");
}

/** Positions of the columns with measurements. */
export function measuresOf(columns) {
  const isNumber = (one) => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL|REAL)/.test(one.type);
  return columns.flatMap((one, at) => (isNumber(one) && !/^(gpu|pid|rank|link)$/.test(one.name) ? [at] : []));
}

/** Lines over time of a result: a line for each number, and for each value of a text column; null: nothing to draw.
 * `only`: the place of the one number that is drawn; null: all. */
export function linesOf(columns, rows, only = null) {
  const time = columns.findIndex((one) => /^(TIMESTAMP|DATE)/.test(one.type));
  const all = measuresOf(columns);
  const numbers = only === null ? all : [only];
  if (time < 0 || !numbers.length || rows.length < 2) return null;
  const texts = columns.flatMap((one, at) => (at !== time && !all.includes(at) ? [at] : []));
  const times = rows.map((row) => Date.parse(row[time]));
  const there = times.filter((ms) => !Number.isNaN(ms));
  const begin = there.reduce((a, b) => Math.min(a, b), Infinity);
  const end = there.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(end > begin)) return null;
  const distinct = new Set(there).size;
  const count = Math.min(600, distinct);
  const step = (end - begin) / Math.max(1, count - 1);
  const lines = new Map();
  rows.forEach((row, number) => {
    const column = Math.round((times[number] - begin) / step);
    if (Number.isNaN(column)) return;
    for (const at of numbers) {
      const name = [...texts.map((text) => row[text]), ...(numbers.length > 1 || !texts.length ? [columns[at].name] : [])].join(" · ");
      const line = lines.get(name) ?? { name, unit: "", sum: Array(count).fill(0), n: Array(count).fill(0), least: Array(count).fill(null), greatest: Array(count).fill(null) };
      lines.set(name, line);
      const value = row[at];
      if (value === null || column >= count) continue;
      line.sum[column] += value;
      line.n[column] += 1;
      line.least[column] = line.least[column] === null ? value : Math.min(line.least[column], value);
      line.greatest[column] = line.greatest[column] === null ? value : Math.max(line.greatest[column], value);
    }
  });
  const drawn = [...lines.values()].slice(0, 16).map((line) => ({ ...line, mean: line.sum.map((sum, at) => (line.n[at] ? sum / line.n[at] : null)) }));
  return { begin: begin - step / 2, step, columns: count, lines: drawn };
}
