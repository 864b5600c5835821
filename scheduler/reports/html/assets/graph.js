// The drawing of the graph: boxes coloured by device, lines between them.

const READABLE = 0.45; // below this scale words would be dust

const TURN = 34; // how far a line goes on before it turns into a gutter
const MARGIN = 26; // above and below, for the lines from column to column

/** The scene of the graph. */
class GraphScene {
  constructor(graph) {
    this.model = new GraphModel(graph);
    this.graph = graph;
    this.label = `The graph ${data.title}, each node in the colour of its device. The table of nodes says the same.`;
    this.height = 560;
    this.inset = { left: 16, top: 16, right: 16, bottom: 16 };
    this.uniform = true;
    this.nodes = data.nodes;
    this.critical = criticalSubgraphs();
    this.found = null; // the nodes that a search has found; null where nothing is searched
  }

  bounds() {
    return [0, -MARGIN, this.model.width, this.model.height + 2 * MARGIN];
  }

  hit(x, y) {
    let found = null;
    for (const box of this.model.boxes) {
      if (x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height) found = box;
    }
    return found;
  }

  tip(box) {
    if (box.kind === "node") return nodeLines(box.index);
    if (box.kind === "input" || box.kind === "output") return [`${box.kind} ${this.words(box)[0]}`, this.words(box)[1]];
    const nodes = this.graph.groups.nodes[box.index];
    const action = box.kind === "group" ? "click to open" : "click to close";
    return [this.graph.groups.name[box.index], counted(nodes.length, "node"), ...operators(nodes), action];
  }

  pick(box) {
    if (box.kind === "node") selection.pick(box.index, "graph");
    else if (box.kind === "group" || box.kind === "frame") this.toggle(box.index);
  }

  toggle(group) {
    if (!this.model.open.delete(group)) this.model.open.add(group);
    this.keepInSight(group);
  }

  /** Arrange anew, with the group staying where it was on the screen. */
  keepInSight(group) {
    const before = this.model.boxOfGroup[group];
    this.model.arrange();
    const after = this.model.boxOfGroup[group];
    this.view.left += after.x - before.x;
    this.view.top += after.y - before.y;
    this.view.fitted = false;
    this.view.hold();
    this.view.redraw();
  }

  showAll(grouped) {
    this.model.grouped = grouped;
    this.model.open.clear();
    this.model.arrange();
    this.view.fit();
  }

  /** Bring a node into sight, out of its group if need be. */
  reveal(node) {
    const vertex = node + this.model.inputs;
    if (node >= this.model.nodes) return;
    if (!this.model.boxOfVertex[vertex]) {
      this.model.open.add(this.model.groupOf[node]);
      this.model.arrange();
    }
    const box = this.model.boxOfVertex[vertex];
    if (this.isInSight(box)) {
      this.view.redraw();
      return;
    }
    const scale = Math.max(this.view.scaleX, 0.8);
    this.view.scaleX = this.view.scaleY = scale;
    this.view.fitted = false;
    this.view.center(box.x + box.width / 2, box.y + box.height / 2);
  }

  isInSight(box) {
    const { view } = this;
    const [left, top] = [view.toScreenX(box.x), view.toScreenY(box.y)];
    const [width, height] = [box.width * view.scaleX, box.height * view.scaleY];
    return view.scaleX >= READABLE && left >= 0 && top >= 0 && left + width <= view.width && top + height <= view.height;
  }

  /** Keys walk from the selected node: [ to a producer, ] to a consumer. */
  key(key) {
    if (key !== "[" && key !== "]") return false;
    const { source, target } = this.graph.edges;
    const [here, there] = key === "]" ? [source, target] : [target, source];
    const vertex = (selection.node ?? 0) + this.model.inputs;
    const edge = here.findIndex((one, i) => one === vertex && this.model.isNode(there[i]));
    if (edge >= 0) selection.pick(there[edge] - this.model.inputs, "keys");
    return true;
  }

  draw(context, view) {
    const [left, top] = view.toScene(-20, -20);
    const [right, bottom] = view.toScene(view.width + 20, view.height + 20);
    const seen = (box) => box.x < right && box.x + box.width > left && box.y < bottom && box.y + box.height > top;
    context.translate(view.toScreenX(0), view.toScreenY(0));
    context.scale(view.scaleX, view.scaleX);
    const boxes = this.model.boxes.filter(seen);
    for (const box of boxes) if (box.kind === "frame") this.drawFrame(context, box);
    this.drawLines(context, view, { left, top, right, bottom });
    for (const box of boxes) if (box.kind !== "frame") this.drawBox(context, view, box);
    if (view.scaleX < READABLE) this.drawPrefixes(context, view);
  }

  prefixes(view) {
    return prefixAreas(this.model, this.nodes.name, 24 / view.scaleX);
  }

  /** Where boxes are too small for words: what the names of those side by side begin with. */
  drawPrefixes(context, view) {
    const size = 12 / view.scaleX;
    context.font = `600 ${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (const area of this.prefixes(view)) {
      context.strokeStyle = theme.get("muted");
      context.lineWidth = 1 / view.scaleX;
      outline(context, area, 6 / view.scaleX);
      context.stroke();
      const words = fittedEnd(context, area.words, area.room);
      if (!words) continue;
      const width = context.measureText(words).width;
      context.globalAlpha = 0.85;
      context.fillStyle = theme.get("paper");
      context.fillRect(area.x, area.y, width + size * 0.6, size * 1.4);
      context.globalAlpha = 1;
      context.fillStyle = theme.get("ink");
      context.fillText(words, area.x + size * 0.3, area.y + size * 0.75);
    }
  }

  drawLines(context, view, area) {
    const plain = new Path2D();
    const crossing = new Path2D();
    const near = new Path2D();
    const chosen = selection.node === null ? null : this.model.boxOfVertex[selection.node + this.model.inputs];
    for (const line of this.model.lines) {
      if (!touches(line, area)) continue;
      const own = line.from === view.hovered || line.to === view.hovered || (chosen && (line.from === chosen || line.to === chosen));
      const apart = this.device(line.from) && this.device(line.to) && this.device(line.from) !== this.device(line.to);
      trace(own ? near : apart ? crossing : plain, line);
    }
    this.stroke(context, plain, theme.get("edge"), Math.max(0.8, 0.8 / view.scaleX));
    this.stroke(context, crossing, theme.get("transfer"), Math.max(1.8, 1.2 / view.scaleX));
    this.stroke(context, near, theme.get("accent"), Math.max(2.2, 1.6 / view.scaleX));
  }

  stroke(context, path, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke(path);
  }

  drawFrame(context, box) {
    const device = this.device(box);
    context.fillStyle = tint(device, 0.92);
    context.strokeStyle = hue(device);
    context.lineWidth = 1.2;
    outline(context, box, 8);
    context.fill();
    context.stroke();
    context.fillStyle = theme.get("ink");
    context.textBaseline = "middle";
    context.font = "600 13px system-ui, sans-serif";
    context.fillText(fitted(context, `− ${this.graph.groups.name[box.index]}`, box.width - 24), box.x + 12, box.y + 16);
  }

  drawBox(context, view, box) {
    const device = this.device(box);
    const chosen = box.kind === "node" && box.index === selection.node;
    const critical = this.isCritical(box);
    const faint = view.scaleX < READABLE ? 0.4 : box === view.hovered ? 0.6 : 0.76;
    const dim = this.found !== null && !(box.kind === "node" && this.found.has(box.index)) ? 0.25 : 1;
    context.globalAlpha = dim;
    context.fillStyle = device ? tint(device, faint) : theme.get("paper");
    context.strokeStyle = chosen ? theme.get("accent") : critical ? theme.get("ink") : device ? hue(device) : theme.get("muted");
    context.lineWidth = chosen ? 4 : critical ? 2.4 : 1;
    outline(context, box, device ? 6 : box.height / 2);
    context.fill();
    context.stroke();
    if (device) {
      context.fillStyle = hue(device);
      context.fillRect(box.x + 1, box.y + 5, 4, box.height - 10);
    }
    if (view.scaleX >= READABLE) this.write(context, box);
    context.globalAlpha = 1;
  }

  write(context, box) {
    const [first, second] = this.words(box);
    const room = box.width - 22;
    context.textBaseline = "middle";
    context.fillStyle = theme.get("ink");
    context.font = "600 12px system-ui, sans-serif";
    const alone = box.height < 30;
    const middle = box.y + box.height / 2;
    context.fillText(fitted(context, first, room), box.x + 12, alone ? middle : middle - 8);
    if (alone) return;
    context.fillStyle = theme.get("muted");
    context.font = "11px system-ui, sans-serif";
    const shorten = box.kind === "node" ? fittedEnd : fitted; // names of nodes differ at their ends
    context.fillText(shorten(context, second, room), box.x + 12, middle + 8);
  }

  words(box) {
    if (box.kind === "node") return [text(this.nodes.op[box.index]), this.nodes.name[box.index]];
    if (box.kind === "input") return this.graph.inputs[box.index].map(text);
    if (box.kind === "output") return this.graph.outputs[box.index].map(text);
    return [`+ ${this.graph.groups.name[box.index]}`, counted(this.graph.groups.nodes[box.index].length, "node")];
  }

  device(box) {
    if (box.kind === "input" || box.kind === "output") return null;
    const node = box.kind === "node" ? box.index : this.graph.groups.nodes[box.index][0];
    return text(this.nodes.device[node]);
  }

  isCritical(box) {
    if (box.kind === "node") return this.critical.has(this.nodes.subgraph[box.index]);
    return box.kind === "group" && this.critical.has(this.graph.groups.subgraph[box.index]);
  }
}

function outline(context, box, radius) {
  context.beginPath();
  context.roundRect(box.x, box.y, box.width, box.height, radius);
}

/**
 * Add a line to a path: out of the box's bottom, along its way points, in at the top. What goes on
 * in another column runs along the gutter before it.
 */
function trace(path, line) {
  let [x, y] = [line.from.x + line.from.width / 2, line.from.y + line.from.height];
  let column = line.from.gutter;
  path.moveTo(x, y);
  const leap = (toX, toY, gutter) => {
    if (gutter !== column && toY < y + 2 * TURN) {
      path.bezierCurveTo(x, y + TURN, gutter, y + TURN, gutter, y - 10);
      path.lineTo(gutter, toY + 10);
      path.bezierCurveTo(gutter, toY - TURN, toX, toY - TURN, toX, toY);
    } else if (gutter !== column) {
      path.bezierCurveTo(x, y + TURN, gutter, y - 10, gutter, y + TURN);
      path.lineTo(gutter, toY - TURN);
      path.bezierCurveTo(gutter, toY + 10, toX, toY - TURN, toX, toY);
    } else {
      const bend = Math.max((toY - y) / 2, 10);
      path.bezierCurveTo(x, y + bend, toX, toY - bend, toX, toY);
    }
    [x, y, column] = [toX, toY, gutter];
  };
  for (const point of line.via) {
    leap(point.x, point.top, point.gutter);
    path.lineTo(point.x, point.bottom);
    y = point.bottom;
  }
  leap(line.to.x + line.to.width / 2, line.to.y, line.to.gutter);
}

function touches(line, area) {
  const xs = [line.from.x, line.from.x + line.from.width, line.to.x, line.to.x + line.to.width, ...line.via.map((p) => p.x)];
  const ys = [line.from.y, line.from.y + line.from.height, line.to.y, line.to.y + line.to.height];
  return Math.min(...xs) < area.right && Math.max(...xs) > area.left && Math.min(...ys) < area.bottom + 60 && Math.max(...ys) > area.top - 60;
}

/** The commonest operators of some nodes, in words. */
function operators(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(data.nodes.op[node], (counts.get(data.nodes.op[node]) ?? 0) + 1);
  const common = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4);
  return [common.map(([op, times]) => `${times} ${text(op)}`).join(", ")];
}
