// Searching the graph: nodes that are found stay bright, and Enter walks from one to the next.

class Search {
  constructor(scene) {
    this.scene = scene;
    this.order = [];
    this.status = element("span", { class: "status", role: "status" });
    this.input = element("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search the graph for names, operators and devices",
      title: "Names, operators, devices; Enter goes to the next, Shift and Enter to the one before",
      oninput: () => this.look(),
      onkeydown: (event) => this.press(event),
    });
    this.elements = [this.status, this.input];
  }

  look() {
    const words = this.input.value.trim().toLowerCase();
    const { nodes } = data;
    this.order = [];
    if (words) {
      for (let node = 0; node < this.scene.model.nodes; node += 1) {
        const said = `${nodes.name[node]} ${text(nodes.op[node])} ${text(nodes.device[node])}`;
        if (said.toLowerCase().includes(words)) this.order.push(node);
      }
    }
    this.scene.found = words ? new Set(this.order) : null;
    this.status.textContent = words ? counted(this.order.length, "node") : "";
    this.scene.view.redraw();
  }

  press(event) {
    if (event.key !== "Enter" || !this.order.length) return;
    event.preventDefault();
    const here = this.order.indexOf(selection.node);
    const step = event.shiftKey ? (here < 0 ? -1 : here - 1) : here + 1;
    selection.pick(this.order.at(step % this.order.length), "search");
  }
}
