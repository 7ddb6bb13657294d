// Makes tables: of plain texts, and of a query's result with columns that sort.

function text(value, type) {
  if (value === null) return "–";
  if (typeof value === "number" && /^INTERVAL/.test(type)) return duration(value);
  if (typeof value === "number" && type === "FLOAT") return String(Number(value.toPrecision(7)));
  if (typeof value === "number" && type === "DOUBLE") return String(Number(value.toPrecision(12)));
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** 2 h 05 min of seconds. */
export function duration(seconds) {
  const whole = Math.abs(seconds);
  const sign = seconds < 0 ? "-" : "";
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 60) return `${sign}${Number(whole.toFixed(3))} s`;
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${sign}${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
  return `${sign}${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Order of two values; absent ones come last. */
export function compare(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A table of texts; `classOf(text, column)` is the class of a cell. */
export function plainTable(heading, rows, classOf = () => "") {
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const text of heading) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = text;
    head.append(cell);
  }
  const body = made.createTBody();
  for (const texts of rows) {
    const row = body.insertRow();
    texts.forEach((text, column) => {
      const cell = row.insertCell();
      cell.textContent = text;
      const name = classOf(text, column);
      if (name) cell.className = name;
    });
  }
  return made;
}

/** A box that scrolls its content, with the keyboard too. */
export function scrolling(label, content) {
  const box = document.createElement("div");
  box.className = "scroll";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  box.append(content);
  return box;
}

/** The table of a result. */
export function table(columns, rows) {
  const element = document.createElement("table");
  const head = element.createTHead().insertRow();
  const body = element.createTBody();
  let by = null;
  let isDown = false;

  function fill(ordered) {
    body.replaceChildren(
      ...ordered.map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, at) => {
          const cell = line.insertCell();
          cell.textContent = text(value, columns[at].type);
          if (typeof value === "number") cell.className = "number";
        });
        return line;
      }),
    );
  }

  columns.forEach((column, at) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (rows.some((row) => typeof row[at] === "number")) cell.className = "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.name;
    button.title = column.type;
    button.addEventListener("click", () => {
      isDown = by === at && !isDown;
      by = at;
      const ordered = [...rows].sort((a, b) => compare(a[at], b[at]) * (isDown && a[at] !== null && b[at] !== null ? -1 : 1));
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      fill(ordered);
    });
    cell.append(button);
    head.append(cell);
  });
  fill(rows);
  return element;
}
