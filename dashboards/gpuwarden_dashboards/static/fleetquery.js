// The language of the fleet's search box: words and key:value terms, all of which must hold.
//   h100 rack=r7 username:ali,bob -state:idle value<20 job="train 7"
// `:` contains, `=` equals, a comma separates alternatives, - or ! in front negates, * matches anything.

const TERM = /([-!]?)(?:([\p{L}\p{N}_./-]+?)(:|<=|>=|<|>|=))?("(?:[^"]*)"?(?:,"[^"]*"?)*|[^\s]*)/uy;
const NUMBERS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };

/** Terms {not, key, op, values}; key is null for a plain word. Unfinished ones ("rack:") are left out. */
export function parse(text) {
  const terms = [];
  TERM.lastIndex = 0;
  while (TERM.lastIndex < text.length) {
    if (/\s/.test(text[TERM.lastIndex])) {
      TERM.lastIndex += 1;
      continue;
    }
    const start = TERM.lastIndex;
    const found = TERM.exec(text);
    if (!found || !found[0]) {
      TERM.lastIndex = start + 1;
      continue;
    }
    const [, sign, key = null, op = ":", said] = found;
    const values = said.startsWith('"')
      ? [...said.matchAll(/"([^"]*)"?/g)].map((one) => one[1])
      : said.split(",").filter((value) => value);
    if (values.length && (said || key)) terms.push({ not: Boolean(sign), key: key?.toLowerCase() ?? null, op, values: values.map((value) => value.toLowerCase()) });
  }
  return terms;
}

/** The text of a term that is exactly this. */
export function exactly(key, value) {
  return `${key}=${/^[^\s",]+$/.test(value) ? value : `"${value.replaceAll('"', "*")}"`}`;
}

/** Whether a name matches one of the values of a term. */
export function fits(name, { op, values }) {
  const text = name.toLowerCase();
  return values.some((value) => {
    if (!value.includes("*")) return op === "=" ? text === value : text.includes(value);
    const pattern = value.split("*").map((part) => part.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join(".*");
    return new RegExp(op === "=" ? `^${pattern}$` : pattern, "s").test(text);
  });
}

/** One byte for each GPU of the fleet: 1 where all terms hold. `unknown`: keys that no GPU has. */
export function matching(fleet, terms) {
  const mask = new Uint8Array(fleet.size).fill(1);
  const unknown = [];
  for (const term of terms) {
    const test = testOf(fleet, term);
    if (!test) unknown.push(term.key);
    const wanted = term.not ? 0 : 1;
    for (let at = 0; at < mask.length; at += 1) if (mask[at] && (test ? Number(test(at)) : 0) !== wanted) mask[at] = 0;
  }
  return { mask, unknown };
}

function testOf(fleet, term) {
  const { key, op } = term;
  if (op in NUMBERS) {
    const bound = Number(term.values[0]);
    if (Number.isNaN(bound)) return null;
    if (key === "value") return (at) => NUMBERS[op](fleet.values[at], bound);
    return key === "gpu" ? (at) => NUMBERS[op](fleet.gpuOf[at], bound) : null;
  }
  if (key === "gpu") return (at) => term.values.includes(String(fleet.gpuOf[at]));
  if (key === "state") {
    const held = fleet.stateNames.map((names) => names.some((name) => fits(name, term)));
    return (at) => held[fleet.states[at]];
  }
  const column = (name) => {
    const { codes, names } = fleet.column(name);
    const held = names.map((one) => fits(one, term));
    return (at) => held[codes[at]];
  };
  if (key !== null) return fleet.has(key) ? column(key) : null;
  const tests = ["node", "model", "username", "job", ...fleet.labelKeys].map(column);
  return (at) => tests.some((test) => test(at));
}
