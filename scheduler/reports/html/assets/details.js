// What is known of one node: for the tip beside the pointer, and for the panel beside the graph.

/** A few lines about a node. */
function nodeLines(node) {
  const { nodes } = data;
  const lines = [nodes.name[node], `${text(nodes.op[node])} on ${text(nodes.device[node])}`];
  lines.push(...(nodes.outputs[node] ?? []).map(([name, spec]) => `→ ${text(spec)}`));
  if (nodes.cost_us[node] !== null) lines.push(`cost ${duration(nodes.cost_us[node])} (${text(nodes.basis[node])})`);
  if (nodes.measured_us[node] !== null) lines.push(`measured ${duration(nodes.measured_us[node])}`);
  if (nodes.reason[node] !== null) lines.push(text(nodes.reason[node]));
  return lines;
}

/** The panel of the selected node. */
class Details {
  constructor() {
    this.element = element("aside", { id: "details", "aria-label": "Selected node", "aria-live": "polite" });
    selection.listeners.push((node) => this.show(node));
    this.show(null);
  }

  show(node) {
    if (node === null) {
      const hint = "Click a node in the graph, the table, the timeline or the memory to see all that is known of it.";
      this.element.replaceChildren(element("p", { class: "hint" }, hint));
      return;
    }
    const { nodes } = data;
    const facts = element("dl");
    const fact = (name, value) => {
      if (value !== null && value !== undefined && value !== "") facts.append(element("dt", {}, name), element("dd", {}, value));
    };
    fact("operator", text(nodes.op[node]));
    fact("device", deviceCell(text(nodes.device[node])));
    fact("why", nodes.reason[node] === null ? "" : text(nodes.reason[node]));
    if (nodes.cost_us[node] !== null) fact("cost", `${duration(nodes.cost_us[node])}, ${BASES[text(nodes.basis[node])]}`);
    if (nodes.measured_us[node] !== null) fact("measured", `${duration(nodes.measured_us[node])}, mean of ${count(nodes.runs[node])}; ${duration(nodes.min_us[node])} at least`);
    if (nodes.flops[node] !== null) fact("work", `${magnitude(nodes.flops[node])} flop, ${bytes(nodes.nbytes[node])} read and written`);
    this.element.replaceChildren(
      element("h3", {}, nodes.name[node]),
      facts,
      ...this.attributes(node),
      ...this.tensors("Reads", nodes.inputs[node]),
      ...this.tensors("Writes", nodes.outputs[node]),
      ...this.options(node),
    );
  }

  /** Attributes other than their defaults. */
  attributes(node) {
    const attributes = data.nodes.attributes[node];
    if (!attributes?.length) return [];
    return [element("h4", {}, "Attributes"), element("ul", {}, ...attributes.map((one) => element("li", {}, text(one))))];
  }

  tensors(title, tensors) {
    if (!tensors?.length) return [];
    const lines = tensors.map(([name, spec]) => element("li", {}, text(name), element("span", { class: "spec" }, ` ${text(spec)}`)));
    return [element("h4", {}, title), element("ul", {}, ...lines)];
  }

  options(node) {
    const options = data.nodes.options[node];
    if (!options?.length) return [];
    const rows = options.map(([device, supported, reason, us]) => {
      const own = device === data.nodes.device[node];
      const cost = us === null ? (supported ? "yes" : "no") : duration(us);
      return element(
        "tr",
        { class: own ? "marked" : "" },
        element("th", { scope: "row" }, deviceCell(text(device))),
        element("td", { class: "right" }, cost),
        element("td", {}, text(reason)),
      );
    });
    return [element("h4", {}, "Where it could run"), element("table", {}, element("tbody", {}, ...rows))];
  }
}

const BASES = { measured: "as measured", scaled: "scaled from a measurement", model: "by the model of the device" };
