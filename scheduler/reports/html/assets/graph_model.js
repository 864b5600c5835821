// Where the boxes of the graph stand, and how its edges run, for the groups that are open.

const GROUP = { width: 190, height: 54 };
const TERMINAL = { width: 120, height: 26 };
const FRAME = { head: 30, pad: 16 };
const ASPECT = 1.7; // of the picture: width by height

/** The graph of the page, with groups that open and close. */
class GraphModel {
  constructor(graph) {
    this.graph = graph;
    this.inputs = graph.inputs.length;
    this.nodes = graph.groups.nodes.reduce((sum, nodes) => sum + nodes.length, 0);
    this.groupOf = new Int32Array(this.nodes);
    this.placeIn = new Int32Array(this.nodes);
    graph.groups.nodes.forEach((nodes, group) => {
      nodes.forEach((node, place) => {
        this.groupOf[node] = group;
        this.placeIn[node] = place;
      });
    });
    this.grouped = graph.collapsed;
    this.open = new Set();
    this.arrange();
  }

  /** Place everything anew: `boxes` by vertex or group, `lines` between them. */
  arrange() {
    this.boxes = [];
    this.boxOfVertex = new Array(this.inputs + this.nodes + this.graph.outputs.length).fill(null);
    this.boxOfGroup = new Array(this.graph.groups.name.length).fill(null);
    if (this.grouped) this.arrangeGroups();
    else this.arrangeFlat();
    this.lines = this.route();
  }

  arrangeFlat() {
    const sizes = this.graph.flat.layer.map((_, vertex) => (this.isNode(vertex) ? NODE : TERMINAL));
    this.outer = arrange(this.graph.flat, sizes, ASPECT);
    this.outer.at.forEach((point, vertex) => this.addVertex(vertex, point, sizes[vertex]));
    [this.width, this.height] = [this.outer.width, this.outer.height];
  }

  arrangeGroups() {
    const { groups, units } = this.graph;
    this.inner = groups.layout.map((layout, group) =>
      this.open.has(group) ? arrange(layout, layout.layer.map(() => NODE), 1.2) : null,
    );
    const sizes = units.layer.map((_, unit) => {
      const group = this.groupOfUnit(unit);
      if (group === null) return TERMINAL;
      const inner = this.inner[group];
      if (!inner) return GROUP;
      return {
        width: Math.max(inner.width + 2 * FRAME.pad, GROUP.width),
        height: inner.height + FRAME.head + FRAME.pad,
      };
    });
    this.outer = arrange(units, sizes, ASPECT);
    this.outer.at.forEach((point, unit) => {
      const group = this.groupOfUnit(unit);
      if (group === null) this.addVertex(this.vertexOfUnit(unit), point, TERMINAL);
      else this.addGroup(group, point, sizes[unit]);
    });
    [this.width, this.height] = [this.outer.width, this.outer.height];
  }

  addVertex(vertex, point, size) {
    const kind = this.isNode(vertex) ? "node" : vertex < this.inputs ? "input" : "output";
    const index = kind === "node" ? vertex - this.inputs : kind === "input" ? vertex : vertex - this.inputs - this.nodes;
    this.boxOfVertex[vertex] = this.add(kind, index, point.x, point.y, size, point.gutter);
  }

  addGroup(group, point, size) {
    const inner = this.inner[group];
    this.boxOfGroup[group] = this.add(inner ? "frame" : "group", group, point.x, point.y, size, point.gutter);
    if (!inner) return;
    const left = point.x - inner.width / 2;
    this.graph.groups.nodes[group].forEach((node, place) => {
      const at = inner.at[place];
      const box = this.add("node", node, left + at.x, point.y + FRAME.head + at.y, NODE, left + at.gutter);
      this.boxOfVertex[node + this.inputs] = box;
    });
    for (const points of Object.values(inner.chains)) {
      for (const one of points) {
        one.x += left;
        one.gutter += left;
        one.top += point.y + FRAME.head;
        one.bottom += point.y + FRAME.head;
      }
    }
  }

  add(kind, index, x, y, size, gutter) {
    const box = { kind, index, x: x - size.width / 2, y, width: size.width, height: size.height, gutter };
    this.boxes.push(box);
    return box;
  }

  /** The lines between boxes, one for each pair. */
  route() {
    const { source, target, tensor } = this.graph.edges;
    const found = new Map();
    for (let edge = 0; edge < source.length; edge += 1) {
      const [from, to] = [this.boxOf(source[edge]), this.boxOf(target[edge])];
      if (from === to) continue;
      const key = `${from.kind}${from.index}>${to.kind}${to.index}`;
      const line = found.get(key);
      if (line) line.edges += 1;
      else found.set(key, { from, to, edges: 1, tensor: tensor[edge], via: this.via(source[edge], target[edge]) });
    }
    return [...found.values()];
  }

  /** The way points of an edge. */
  via(source, target) {
    if (!this.grouped) return this.passing(this.outer, this.graph.flat, source, target);
    const [from, to] = [this.unitOf(source), this.unitOf(target)];
    if (from !== to) return this.passing(this.outer, this.graph.units, from, to);
    const group = this.groupOf[source - this.inputs];
    const places = [source, target].map((vertex) => this.placeIn[vertex - this.inputs]);
    return this.passing(this.inner[group], this.graph.groups.layout[group], ...places);
  }

  passing(arranged, layout, from, to) {
    const chain = arranged.chains[from];
    const skipped = layout.layer[to] - layout.layer[from] - 1;
    return chain && skipped > 0 ? chain.slice(0, skipped) : [];
  }

  isNode(vertex) {
    return vertex >= this.inputs && vertex < this.inputs + this.nodes;
  }

  boxOf(vertex) {
    return this.boxOfVertex[vertex] ?? this.boxOfGroup[this.groupOf[vertex - this.inputs]];
  }

  unitOf(vertex) {
    if (vertex < this.inputs) return vertex;
    if (this.isNode(vertex)) return this.inputs + this.groupOf[vertex - this.inputs];
    return vertex - this.nodes + this.graph.groups.name.length;
  }

  groupOfUnit(unit) {
    const group = unit - this.inputs;
    return group >= 0 && group < this.graph.groups.name.length ? group : null;
  }

  vertexOfUnit(unit) {
    return unit < this.inputs ? unit : unit - this.graph.groups.name.length + this.nodes;
  }
}
