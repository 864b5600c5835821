// The data, the words for numbers, the colours, and elements whose text is only ever text.

const data = JSON.parse(document.getElementById("data").textContent);

/** Write out what the page's data leave out: empty columns, steps as rows. */
function complete() {
  const rows = data.nodes.name.length;
  for (const [name, column] of Object.entries(data.nodes)) {
    if (column.length < rows) data.nodes[name] = new Array(rows).fill(null);
  }
  for (const timeline of data.timelines) {
    const table = data.step_tables[timeline.steps];
    timeline.steps = table.index.map((index, row) => ({
      index,
      name: data.texts[table.name[row]],
      nodes: table.nodes[row],
      nbytes: table.nbytes[row],
      subgraph: table.subgraph[row],
      next: table.next[row],
      slack: timeline.slack ? timeline.slack[index] : null,
    }));
  }
}

complete();

/** Return the text of a number in the table of texts. */
function text(number) {
  return data.texts[number];
}

/** Make an element; children are elements or text. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A part of the page under a heading; `tools` stand beside the heading. */
function section(id, title, tools, ...children) {
  const head = element("header", {}, element("h2", { id: `${id}-title` }, title), ...tools);
  return element("section", { id, "aria-labelledby": `${id}-title` }, head, ...children);
}

function button(label, title, onclick) {
  return element("button", { type: "button", title, onclick }, label);
}

const UNITS = ["bytes", "KB", "MB", "GB", "TB"];

function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? Number(value.toPrecision(3)) : value} ${unit ? UNITS[unit] : count === 1 ? "byte" : "bytes"}`;
}

/** Microseconds in words: "12.3 µs", "1.07 ms". */
function duration(us) {
  if (us === null || us === undefined) return "";
  if (us === 0) return "0";
  const [factor, unit] =
    us < 1 ? [1e3, "ns"] : us < 1e3 ? [1, "µs"] : us < 1e6 ? [1e-3, "ms"] : [1e-6, "s"];
  return `${Number((us * factor).toPrecision(3))} ${unit}`;
}

function count(number) {
  return number.toLocaleString("en");
}

/** A count and its noun: "1 node", "2,000 nodes". */
function counted(number, noun) {
  return number === 1 ? `1 ${noun}` : `${count(number)} ${noun}s`;
}

/** Large numbers as multiples: 1.2 M. */
function magnitude(number) {
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${Number((number / size).toPrecision(3))} ${sign}`;
  }
  return String(number);
}

// Okabe and Ito's colours (Color Universal Design, 2008), which colour-blind people tell apart.
const HUES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442"];

/** The colour of a device, by its name. */
function hue(device) {
  const place = data.devices.indexOf(device);
  return place < 0 ? "#888888" : HUES[place % HUES.length];
}

function channels(colour) {
  return [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
}

/** A colour between two, `share` of the way to the second. */
function mixed(first, second, share) {
  const [from, to] = [channels(first), channels(second)];
  const parts = from.map((value, i) => Math.round(value + (to[i] - value) * share));
  return `rgb(${parts.join(",")})`;
}

/** The colours of the theme in use, read from the style sheet. */
const theme = {
  values: null,
  listeners: [],
  get(name) {
    if (!this.values) this.values = getComputedStyle(document.documentElement);
    return this.values.getPropertyValue(`--${name}`).trim();
  },
  changed() {
    this.values = null;
    for (const listener of this.listeners) listener();
  },
};

const tints = new Map();

/** The fill for a device: its hue, faint, on the page's background. */
function tint(device, share = 0.76) {
  const background = theme.get("paper");
  const key = `${device}|${share}|${background}`;
  if (!tints.has(key)) tints.set(key, mixed(hue(device), background, share));
  return tints.get(key);
}

/** What is selected: the row of a node, or none; parts of the page listen. */
const selection = {
  node: null,
  listeners: [],
  pick(node, origin) {
    this.node = node;
    for (const listener of this.listeners) listener(node, origin);
  },
};

/** Return the end of a text, no wider than a width, with an ellipsis where it was cut. */
function fittedEnd(context, words, width) {
  const turned = fitted({ measureText: (one) => context.measureText(backward(one)) }, backward(words), width);
  return backward(turned);
}

function backward(words) {
  return [...words].reverse().join("");
}

/** Return a text no wider than a width, with an ellipsis where it was cut. */
function fitted(context, words, width) {
  if (context.measureText(words).width <= width) return words;
  let low = 0;
  let high = words.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${words.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${words.slice(0, low)}…` : "";
}
