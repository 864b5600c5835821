// A table that is sorted, searched and read page by page, so that 5,000 rows stay quick.

const PAGE_ROWS = 100;

/**
 * Columns: {title, value(row) to sort and search by, cell(row) to show, right: aligned right,
 * wide: text that may wrap}. Rows are numbers from 0.
 */
class Table {
  constructor({ label, columns, rows, pick = null, marked = () => false }) {
    Object.assign(this, { label, columns, rows, pick, marked });
    this.order = rows.map((_, i) => i).map((i) => rows[i]);
    this.sorted = { column: null, down: false };
    this.page = 0;
    this.sought = "";
    this.body = element("tbody");
    this.head = element("tr");
    this.status = element("span", { class: "status", role: "status" });
    this.search = element("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": `Search ${label}`,
      oninput: () => this.seek(this.search.value),
    });
    this.back = button("‹", "Previous rows", () => this.turn(-1));
    this.forth = button("›", "Next rows", () => this.turn(1));
    columns.forEach((column, i) => this.head.append(this.header(column, i)));
    this.tools = [this.search, this.status, this.back, this.forth];
    const table = element("table", { "aria-label": label }, element("thead", {}, this.head), this.body);
    this.element = element("div", { class: "scroll", tabindex: "0" }, table);
    this.refresh();
  }

  header(column, i) {
    const mark = element("span", { class: "mark", "aria-hidden": "true" });
    const sort = element("button", { type: "button", onclick: () => this.sort(i) }, column.title, mark);
    return element("th", { scope: "col", class: column.right ? "right" : "", "aria-sort": "none" }, sort);
  }

  seek(words) {
    this.sought = words.trim().toLowerCase();
    this.page = 0;
    this.refresh();
  }

  /** Sort by a column; numbers from the largest, as that is what one looks for. */
  sort(i) {
    const down = this.sorted.column === i ? !this.sorted.down : Boolean(this.columns[i].right);
    this.sorted = { column: i, down };
    [...this.head.children].forEach((cell, place) => {
      const order = place !== i ? "none" : down ? "descending" : "ascending";
      cell.setAttribute("aria-sort", order);
      cell.querySelector(".mark").textContent = { none: "", descending: " ↓", ascending: " ↑" }[order];
    });
    this.page = 0;
    this.refresh();
  }

  turn(by) {
    this.page = Math.max(0, Math.min(this.page + by, this.pages - 1));
    this.refresh();
    this.element.scrollTop = 0;
  }

  get pages() {
    return Math.max(1, Math.ceil(this.shown.length / PAGE_ROWS));
  }

  haystack(row) {
    this.words ??= new Map();
    if (!this.words.has(row)) {
      this.words.set(row, this.columns.map((column) => column.value(row) ?? "").join("\n").toLowerCase());
    }
    return this.words.get(row);
  }

  refresh() {
    this.shown = this.sought ? this.order.filter((row) => this.haystack(row).includes(this.sought)) : [...this.order];
    if (this.sorted.column !== null) {
      const { value } = this.columns[this.sorted.column];
      const sign = this.sorted.down ? -1 : 1;
      const keys = new Map(this.shown.map((row) => [row, value(row)]));
      this.shown.sort((a, b) => compared(keys.get(a), keys.get(b), sign) || a - b);
    }
    this.fill();
  }

  fill() {
    const first = this.page * PAGE_ROWS;
    const visible = this.shown.slice(first, first + PAGE_ROWS);
    this.body.replaceChildren(...visible.map((row) => this.line(row)));
    const range = visible.length ? `${count(first + 1)} to ${count(first + visible.length)} of ` : "";
    const all = this.shown.length === this.rows.length ? "" : ` (${count(this.rows.length)} in all)`;
    this.status.textContent = `${range}${count(this.shown.length)}${all}`;
    this.back.disabled = this.page === 0;
    this.forth.disabled = this.page >= this.pages - 1;
    const [back, forth] = [this.back, this.forth];
    back.hidden = forth.hidden = this.pages === 1;
  }

  line(row) {
    const cells = this.columns.map((column, i) => {
      const content = column.cell ? column.cell(row) : column.value(row) ?? "";
      const shown = i === 0 && this.pick ? button(content, "Show this one everywhere", () => this.pick(row)) : content;
      return element(i ? "td" : "th", { class: kind(column), ...(i ? {} : { scope: "row" }) }, shown);
    });
    return element("tr", { class: this.marked(row) ? "marked" : "", "data-row": row }, ...cells);
  }

  /** Turn to the page that shows a row, if the search lets it through. */
  reveal(row) {
    const place = this.shown.indexOf(row);
    if (place >= 0) this.page = Math.floor(place / PAGE_ROWS);
    this.fill();
    const line = this.body.querySelector(`[data-row="${row}"]`);
    if (line) this.element.scrollTop = line.offsetTop - this.element.clientHeight / 2;
  }
}

function kind(column) {
  return [column.right ? "right" : "", column.wide ? "wide" : ""].join(" ").trim();
}

/** Order values; what is not known comes last either way. */
function compared(a, b, sign) {
  const [unknownA, unknownB] = [a === null || a === undefined || a === "", b === null || b === undefined || b === ""];
  if (unknownA || unknownB) return unknownA - unknownB;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}
