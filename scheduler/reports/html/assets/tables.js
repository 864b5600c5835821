// The two tables: all nodes, and all steps with their slack.

/** The options of a node on devices other than its own, in words. */
function otherOptions(node) {
  const own = data.nodes.device[node];
  return (data.nodes.options[node] ?? [])
    .filter(([device]) => device !== own)
    .map(([device, supported, reason, us]) =>
      supported ? `${text(device)} ${us === null ? "would do" : duration(us)}` : `${text(device)}: ${text(reason)}`,
    )
    .join("; ");
}

function deviceCell(device) {
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  dot.style.background = hue(device);
  return element("span", { class: "device" }, dot, device);
}

function nodeTable() {
  const nodes = data.nodes;
  const known = (column) => nodes[column].some((value) => value !== null);
  const word = (column) => (row) => (nodes[column][row] === null ? "" : text(nodes[column][row]));
  const columns = [
    { title: "Node", value: (row) => nodes.name[row] },
    { title: "Operator", value: word("op") },
    { title: "Device", value: word("device"), cell: (row) => deviceCell(text(nodes.device[row])) },
  ];
  if (known("cost_us")) {
    columns.push({ title: "Cost", value: (row) => nodes.cost_us[row], cell: (row) => duration(nodes.cost_us[row]), right: true });
  }
  if (known("measured_us")) {
    columns.push({ title: "Measured", value: (row) => nodes.measured_us[row], cell: (row) => duration(nodes.measured_us[row]), right: true });
    columns.push({ title: "Shortest", value: (row) => nodes.min_us[row], cell: (row) => duration(nodes.min_us[row]), right: true });
  }
  if (known("flops")) {
    columns.push({ title: "Flop", value: (row) => nodes.flops[row], cell: (row) => (nodes.flops[row] === null ? "" : magnitude(nodes.flops[row])), right: true });
  }
  if (known("reason")) {
    columns.push({ title: "Why there", value: word("reason"), wide: true });
    columns.push({ title: "Elsewhere", value: otherOptions, wide: true });
  }
  const table = new Table({
    label: "nodes",
    columns,
    rows: nodes.name.map((_, row) => row),
    pick: (row) => selection.pick(row, "table"),
    marked: (row) => row === selection.node,
  });
  selection.listeners.push((node, origin) => (origin === "table" ? table.fill() : table.reveal(node)));
  return table;
}

/** A row for every step: of the first prediction, with medians of what was measured. */
function stepRows() {
  const predicted = data.timelines.find((timeline) => timeline.kind === "predicted");
  const measured = new Map((data.profile?.steps ?? []).map((row) => [`${row.step}|${row.device}`, row]));
  const rows = [];
  predicted?.step.forEach((number, bar) => {
    if (predicted.item[bar] !== predicted.item[0]) return;
    const step = predicted.steps[number];
    const device = predicted.devices[predicted.lane[bar]];
    const key = `${step.name}|${device}`;
    rows.push({
      ...step,
      device,
      start: predicted.start[bar],
      takes: predicted.duration[bar],
      critical: predicted.critical[bar] === 1,
      measured: measured.get(key),
    });
    measured.delete(key);
  });
  const ran = data.timelines.find((timeline) => timeline.kind === "measured");
  const steps = new Map((ran?.steps ?? []).map((step) => [step.name, step]));
  for (const row of measured.values()) {
    const { nodes = null, nbytes = null } = steps.get(row.step) ?? {};
    rows.push({ name: row.step, device: row.device, nodes, nbytes, measured: row });
  }
  return rows;
}

function stepTable() {
  const steps = stepRows();
  const millis = (ms) => (ms === undefined ? null : ms * 1000);
  const column = (title, value) => ({ title, value: (row) => value(steps[row]), cell: (row) => duration(value(steps[row])), right: true });
  const columns = [
    { title: "Step", value: (row) => steps[row].name },
    { title: "Device", value: (row) => steps[row].device, cell: (row) => deviceCell(steps[row].device) },
    { title: "What", value: (row) => what(steps[row]) },
  ];
  if (steps.some((step) => step.takes !== undefined)) {
    columns.push(column("Starts", (step) => step.start ?? null), column("Takes", (step) => step.takes ?? null));
    columns.push(column("Slack", (step) => step.slack ?? null));
    columns.push({ title: "Critical", value: (row) => (steps[row].critical ? "critical" : "") });
  }
  if (steps.some((step) => step.measured)) {
    columns.push(column("Measured", (step) => millis(step.measured?.run_ms)));
    columns.push(column("Queued", (step) => millis(step.measured?.queued_ms)));
  }
  return new Table({ label: "steps", columns, rows: steps.map((_, row) => row) });
}

function what(step) {
  if (step.nbytes !== null) return `copies ${bytes(step.nbytes)}`;
  if (step.nodes === null) return "";
  return counted(step.nodes, "node");
}
