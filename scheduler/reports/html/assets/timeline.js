// Timelines: a bar for every step on the lane of its device; wide bars show their nodes.

const LANE = { bar: 30, gap: 8, label: 150, axis: 26 };
const CRITICAL = 4; // pixels: the band over bars of the critical path
const NODES_FROM = 16; // pixels: from the top of a bar to its nodes
const LEAST_NODE = 1.5; // pixels: below, a bar's nodes are not drawn

/** What an item waits for before it runs. */
const PREPARING = {
  partners: "it waited for other sources of a join",
  planning: "planning: a plan for its shapes was made",
  binding: "binding: programs were bound to memory",
};

/** The nodes of each subgraph, in their order. */
const nodesOfSubgraph = (() => {
  const found = new Map();
  data.nodes.subgraph.forEach((subgraph, node) => {
    if (subgraph === null) return;
    if (!found.has(subgraph)) found.set(subgraph, []);
    found.get(subgraph).push(node);
  });
  return found;
})();

/** What a node takes in a timeline of a kind: measured where that is known. */
function nodeTime(node, kind) {
  const { cost_us: cost, measured_us: measured } = data.nodes;
  return (kind === "measured" ? measured[node] ?? cost[node] : cost[node]) ?? 0;
}

/** Where the nodes of a step lie, as shares of its bar: the node and its end. */
function nodeShares(subgraph, kind) {
  const nodes = nodesOfSubgraph.get(subgraph) ?? [];
  const total = nodes.reduce((sum, node) => sum + nodeTime(node, kind), 0);
  let reached = 0;
  return nodes.map((node, i) => {
    reached += total ? nodeTime(node, kind) / total : 1 / nodes.length;
    return { node, end: i === nodes.length - 1 ? 1 : reached };
  });
}

/** What a bar is part of, if that is a batch of rows and no item. */
function batchOf(timeline, bar) {
  return timeline.batches.names[timeline.item[bar] - timeline.batches.first];
}

/** The subgraphs with a step on the critical path of the first prediction. */
function criticalSubgraphs() {
  const found = new Set();
  const predicted = data.timelines.find((timeline) => timeline.kind === "predicted");
  predicted?.critical.forEach((critical, bar) => {
    const { subgraph } = predicted.steps[predicted.step[bar]];
    if (critical && subgraph !== null) found.add(subgraph);
  });
  return found;
}

/** Round steps for an axis: 1, 2 or 5 times a power of ten. */
function tickStep(span, most) {
  const rough = span / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function drawTimeAxis(context, view, y) {
  const span = view.innerWidth / view.scaleX;
  const step = tickStep(span, view.innerWidth / 90);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  context.textAlign = "center";
  context.fillStyle = theme.get("muted");
  context.strokeStyle = theme.get("line");
  context.lineWidth = 1;
  for (let tick = Math.ceil(view.left / step); tick * step <= view.left + span; tick += 1) {
    const x = view.toScreenX(tick * step);
    context.beginPath();
    context.moveTo(x, view.inset.top);
    context.lineTo(x, y);
    context.stroke();
    context.fillText(duration(tick * step), x, y + 6);
  }
  context.textAlign = "left";
}

/** The scene of one timeline. */
class TimelineScene {
  constructor(timeline) {
    this.timeline = timeline;
    this.label = `Timeline, ${timeline.title}: bars for steps on ${timeline.lanes.length} lanes. The table of steps says the same.`;
    this.stack();
    this.height = this.reach + LANE.axis + 8;
    this.inset = { left: LANE.label, top: 8, right: 16, bottom: LANE.axis };
    this.zoomsY = false;
    this.place = new Map(timeline.step.map((step, bar) => [`${timeline.item[bar]}:${step}`, bar]));
    this.shares = timeline.steps.map((step) => nodeShares(step.subgraph, timeline.kind));
    this.things = new Map();
    this.end = Math.max(...timeline.start.map((start, bar) => start + timeline.duration[bar]), 1e-3);
  }

  /** Give every bar a row; what overlaps on a lane gets rows of its own. */
  stack() {
    const { lane, start, duration: length, lanes } = this.timeline;
    const ends = lanes.map(() => []);
    this.row = lane.map((one, bar) => {
      const free = ends[one].findIndex((end) => end <= start[bar] + 1e-3);
      const row = free < 0 ? ends[one].length : free;
      ends[one][row] = start[bar] + length[bar];
      return row;
    });
    let top = 0;
    this.laneTop = ends.map((rows) => {
      const here = top;
      top += Math.max(rows.length, 1) * (LANE.bar + 2) + LANE.gap;
      return here;
    });
    this.reach = top;
  }

  bounds() {
    return [0, 0, this.end, this.reach];
  }

  top(bar) {
    return this.inset.top + this.laneTop[this.timeline.lane[bar]] + this.row[bar] * (LANE.bar + 2);
  }

  hit(x, y, view) {
    const { start, duration: length } = this.timeline;
    const down = view.toScreenY(y);
    const least = 3 / view.scaleX;
    for (let bar = start.length - 1; bar >= 0; bar -= 1) {
      const within = x >= start[bar] - least / 2 && x <= start[bar] + Math.max(length[bar], least);
      if (within && down >= this.top(bar) && down <= this.top(bar) + LANE.bar) {
        const node = down > this.top(bar) + NODES_FROM ? this.nodeAt(bar, x, view) : null;
        return this.thing(bar, node);
      }
    }
    return null;
  }

  /** The node of a bar at a time, where nodes are drawn. */
  nodeAt(bar, x, view) {
    if (!this.showsNodes(bar, view)) return null;
    const { start, duration: length, step } = this.timeline;
    const share = (x - start[bar]) / Math.max(length[bar], 1e-9);
    return this.shares[step[bar]].find(({ end }) => share <= end)?.node ?? null;
  }

  /** A bar and perhaps a node of it, as one value to be compared. */
  thing(bar, node) {
    const key = `${bar}:${node}`;
    if (!this.things.has(key)) this.things.set(key, { bar, node });
    return this.things.get(key);
  }

  showsNodes(bar, view) {
    const shares = this.shares[this.timeline.step[bar]];
    return shares.length > 1 && (this.timeline.duration[bar] * view.scaleX) / shares.length >= LEAST_NODE;
  }

  tip({ bar, node }) {
    if (node !== null) return nodeLines(node);
    const { timeline } = this;
    const step = timeline.steps[timeline.step[bar]];
    const lines = [step.name, `${batchOf(timeline, bar) ?? `item ${timeline.item[bar]}`}, ${timeline.lanes[timeline.lane[bar]]}`];
    lines.push(`${duration(timeline.duration[bar])}, from ${duration(timeline.start[bar])}`);
    if (!timeline.devices[timeline.lane[bar]]) return [PREPARING[step.name] ?? step.name, ...lines.slice(1)];
    const missing = step.nodes || step.nbytes !== null ? "its lane" : "rows";
    if (timeline.queued[bar]) lines.push(`waited ${duration(timeline.queued[bar])} for ${missing}`);
    if (step.nbytes !== null) lines.push(`${bytes(step.nbytes)} copied`);
    else if (step.nodes) lines.push(counted(step.nodes, "node"));
    if (step.slack !== null && step.slack !== undefined) lines.push(`slack ${duration(step.slack) || "0"}`);
    if (timeline.critical[bar]) lines.push("on the critical path");
    return lines;
  }

  /** Select a node, or the first one of a bar's subgraph. */
  pick({ bar, node }) {
    if (node !== null) {
      selection.pick(node, "timeline");
      return;
    }
    const nodes = nodesOfSubgraph.get(this.timeline.steps[this.timeline.step[bar]].subgraph);
    if (nodes) selection.pick(nodes[0], "timeline");
  }

  draw(context, view) {
    this.drawLanes(context, view);
    drawTimeAxis(context, view, view.height - this.inset.bottom);
    context.save();
    context.beginPath();
    context.rect(this.inset.left, 0, view.innerWidth, view.height);
    context.clip();
    const { start, duration: length, critical } = this.timeline;
    const seen = (bar) => start[bar] + length[bar] >= view.left && start[bar] <= view.left + view.innerWidth / view.scaleX;
    const bars = start.map((_, bar) => bar).filter(seen);
    for (const bar of bars) if (!critical[bar]) this.drawBar(context, view, bar);
    for (const bar of bars) if (critical[bar]) this.drawBar(context, view, bar);
    if (view.hovered !== null) this.drawArrows(context, view, view.hovered.bar);
    context.restore();
  }

  drawLanes(context, view) {
    context.textBaseline = "middle";
    this.timeline.lanes.forEach((lane, i) => {
      const top = this.inset.top + this.laneTop[i];
      const bottom = i + 1 < this.laneTop.length ? this.inset.top + this.laneTop[i + 1] - LANE.gap : this.inset.top + this.reach - LANE.gap;
      context.fillStyle = theme.get("stripe");
      context.fillRect(this.inset.left, top, view.innerWidth, bottom - top - 2);
      context.fillStyle = hue(this.timeline.devices[i]);
      context.fillRect(0, top, 4, bottom - top - 2);
      context.fillStyle = theme.get("ink");
      context.font = "12px system-ui, sans-serif";
      context.fillText(fitted(context, lane, LANE.label - 22), 12, (top + bottom) / 2 - 1);
    });
  }

  drawBar(context, view, bar) {
    const { timeline } = this;
    const device = timeline.devices[timeline.lane[bar]];
    const x = view.toScreenX(timeline.start[bar]);
    const width = Math.max(timeline.duration[bar] * view.scaleX, 1);
    const top = this.top(bar);
    const step = timeline.steps[timeline.step[bar]];
    const chosen = selection.node !== null && step.subgraph !== null && data.nodes.subgraph[selection.node] === step.subgraph;
    context.fillStyle = tint(device, (timeline.item[bar] % 2 ? 0.74 : 0.5) - (bar === view.hovered?.bar ? 0.2 : 0));
    context.fillRect(x, top, width, LANE.bar);
    if (this.showsNodes(bar, view)) this.drawNodes(context, view, bar, x, width, top);
    if (width > 3) {
      context.strokeStyle = chosen ? theme.get("accent") : hue(device);
      context.lineWidth = chosen ? 2.6 : 0.8;
      context.strokeRect(x, top, width, LANE.bar);
    }
    if (timeline.critical[bar]) {
      context.fillStyle = theme.get("ink");
      context.fillRect(x, top - 2, width, CRITICAL);
    }
    if (width > 26) this.write(context, x, width, top, this.words(bar));
  }

  words(bar) {
    const { timeline } = this;
    const item = timeline.items > 1 && !batchOf(timeline, bar) ? `#${timeline.item[bar]} ` : "";
    return item + timeline.steps[timeline.step[bar]].name;
  }

  /** Draw the nodes of a bar in its lower half, as far as they are wide enough. */
  drawNodes(context, view, bar, x, width, top) {
    const shares = this.shares[this.timeline.step[bar]];
    const device = this.timeline.devices[this.timeline.lane[bar]];
    let from = x;
    shares.forEach(({ node, end }, i) => {
      const to = x + width * end;
      if (to > 0 && from < view.width) {
        context.fillStyle = node === selection.node ? theme.get("accent") : tint(device, i % 2 ? 0.8 : 0.62);
        context.fillRect(from, top + NODES_FROM, to - from, LANE.bar - NODES_FROM);
        if (to - from > 34) this.write(context, from, to - from, top + 14, text(data.nodes.op[node]), "10px");
      }
      from = to;
    });
  }

  write(context, x, width, top, words, size = "11px") {
    const left = Math.max(x, this.inset.left);
    const room = Math.min(x + width, this.inset.left + 5000) - left - 8;
    if (room < 12) return;
    context.font = `${size} system-ui, sans-serif`;
    context.fillStyle = theme.get("ink");
    context.textBaseline = "middle";
    context.fillText(fitted(context, words, room), left + 4, top + 9);
  }

  /** Draw where a bar's results go, in the same item. */
  drawArrows(context, view, bar) {
    const { timeline } = this;
    context.strokeStyle = theme.get("accent");
    context.lineWidth = 1.6;
    for (const next of timeline.steps[timeline.step[bar]].next) {
      const other = this.place.get(`${timeline.item[bar]}:${next}`);
      if (other === undefined) continue;
      const fromX = view.toScreenX(timeline.start[bar] + timeline.duration[bar]);
      const toX = view.toScreenX(timeline.start[other]);
      const [fromY, toY] = [this.top(bar) + LANE.bar / 2, this.top(other) + LANE.bar / 2];
      context.beginPath();
      context.moveTo(fromX, fromY);
      context.bezierCurveTo(fromX + 20, fromY, toX - 20, toY, toX, toY);
      context.stroke();
    }
  }
}
