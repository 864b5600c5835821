// The head of the page: facts, the decision, and what was measured of all items together.

function factList(facts) {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of facts) {
    list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  }
  return list;
}

/** What each colour means, and how much of the work each device has. */
function legend() {
  const { device, cost_us: costs } = data.nodes;
  const shares = new Map(data.devices.map((name) => [name, { nodes: 0, us: 0 }]));
  device.forEach((number, node) => {
    const share = shares.get(text(number)) ?? { nodes: 0, us: 0 };
    share.nodes += 1;
    share.us += costs[node] ?? 0;
  });
  const entries = [...shares].map(([name, share]) => {
    const own = share.nodes ? `${counted(share.nodes, "node")}${share.us ? `, ${duration(share.us)}` : ""}` : "no nodes";
    const words = data.replicas[name] ? `as ${data.replicas[name]}, for other items` : own;
    return element("li", {}, deviceCell(name), element("span", { class: "spec" }, ` ${words}`));
  });
  return element("ul", { class: "legend", "aria-label": "Devices and their colours" }, ...entries);
}

/** The candidates that were weighed, as bars. */
function decision() {
  const decided = data.decision;
  if (!decided) return null;
  const longest = Math.max(...decided.candidates.map((one) => one.us ?? 0), 1e-9);
  const rows = decided.candidates.map((one) => {
    const bar = element("span", { class: one.chosen ? "bar chosen" : "bar" });
    bar.style.width = `${Math.max(((one.us ?? 0) / longest) * 100, 0.5)}%`;
    const where = `${counted(one.subgraphs, "subgraph")} on ${one.devices.join(", ")}${one.note ? `: ${one.note}` : ""}`;
    return element(
      "tr",
      { class: one.chosen ? "marked" : "" },
      element("th", { scope: "row" }, one.name),
      element("td", { class: "right" }, duration(one.us)),
      element("td", { class: "bars" }, bar),
      element("td", { class: "spec" }, where),
    );
  });
  const table = element("table", { class: "candidates", "aria-label": "candidates" }, element("tbody", {}, ...rows));
  return element(
    "div",
    { class: "decision" },
    element("h3", {}, decided.text),
    element("p", {}, decided.why),
    rows.length ? table : null,
  );
}

/** On what the time of items was spent, as bars. */
function spent(profile) {
  const rows = profile.spent.map(([name, us, share, meaning]) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${Math.min(share, 1) * 100}%`;
    return element(
      "tr",
      { title: meaning },
      element("th", { scope: "row" }, name),
      element("td", { class: "right" }, duration(us)),
      element("td", { class: "right" }, `${(share * 100).toFixed(1)} %`),
      element("td", { class: "bars" }, bar),
    );
  });
  const table = element("table", { class: "candidates spent", "aria-label": "time of items" }, element("tbody", {}, ...rows));
  return element("figure", {}, element("figcaption", {}, "Where the time of an item went, mean"), table);
}

/** How busy each device was, where time went, and how latencies spread. */
function measurements() {
  const { profile } = data;
  if (!profile) return null;
  const bars = profile.busy.map(([device, share]) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${Math.min(share, 1) * 100}%`;
    bar.style.background = hue(device);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, deviceCell(device)),
      element("td", { class: "right" }, `${Math.round(share * 100)} %`),
      element("td", { class: "bars" }, bar),
    );
  });
  const busy = element("table", { class: "candidates", "aria-label": "busy shares" }, element("tbody", {}, ...bars));
  return element(
    "div",
    { class: "measured" },
    profile.limit ? element("p", { class: "limit" }, profile.limit) : null,
    element("figure", {}, element("figcaption", {}, "Busy, of the time measured"), busy),
    profile.latency_us.length ? spent(profile) : null,
    profile.latency_us.length > 1 ? element("figure", {}, element("figcaption", {}, "Latency of items"), histogram(profile.latency_us)) : null,
  );
}

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

/** A histogram of durations. */
function histogram(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const bins = Math.max(4, Math.min(40, Math.ceil(Math.sqrt(values.length) * 1.5)));
  const width = (high - low) / bins || 1;
  const counts = new Array(bins).fill(0);
  for (const value of sorted) counts[Math.min(Math.floor((value - low) / width), bins - 1)] += 1;
  const most = Math.max(...counts);
  const label = `Latencies from ${duration(low)} to ${duration(high)}`;
  const drawing = shape("svg", { viewBox: "0 0 420 130", role: "img", "aria-label": label, class: "histogram" });
  counts.forEach((times, bin) => {
    const height = (times / most) * 96;
    const bar = shape("rect", { x: 10 + bin * (400 / bins), y: 102 - height, width: 400 / bins - 1, height });
    const range = `${duration(low + bin * width)} to ${duration(low + (bin + 1) * width)}: ${count(times)}`;
    bar.append(shape("title", {}, range));
    drawing.append(bar);
  });
  const middle = sorted[Math.floor(sorted.length / 2)];
  const at = 10 + ((middle - low) / (width * bins)) * 400;
  drawing.append(shape("line", { x1: at, x2: at, y1: 4, y2: 102 }));
  const anchor = at < 90 ? "start" : at > 330 ? "end" : "middle";
  drawing.append(shape("text", { x: at, y: 124, "text-anchor": anchor }, `median ${duration(middle)}`));
  if (at > 150) drawing.append(shape("text", { x: 10, y: 124 }, duration(low)));
  if (at < 270) drawing.append(shape("text", { x: 410, y: 124, "text-anchor": "end" }, duration(high)));
  return drawing;
}
