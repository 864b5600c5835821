// Memory over time: every buffer a rectangle, from its first to its last use, at its offset.

const AREA = { height: 230, label: 84, axis: 24 };

/** When each place of the axis begins and ends, in a predicted timeline of one item. */
function placeTimes(axis, timeline) {
  const bars = new Map();
  timeline.step.forEach((step, bar) => {
    if (timeline.item[bar] === 0) bars.set(timeline.steps[step].index, bar);
  });
  const times = axis.step.map(() => [0, 0]);
  let from = 0;
  while (from < axis.step.length) {
    let to = from;
    while (to < axis.step.length && axis.step[to] === axis.step[from]) to += 1;
    fillTimes(times, axis, from, to, timeline, bars.get(axis.step[from]));
    from = to;
  }
  const end = Math.max(...timeline.start.map((start, bar) => start + timeline.duration[bar]));
  times[times.length - 1] = [end, end * 1.01];
  times[0] = [-end * 0.01, 0];
  return times;
}

function fillTimes(times, axis, from, to, timeline, bar) {
  if (bar === undefined) return;
  const costs = axis.node.slice(from, to).map((node) => (node < 0 ? 0 : nodeTime(node, "predicted")));
  const total = costs.reduce((sum, cost) => sum + cost, 0);
  let reached = timeline.start[bar];
  costs.forEach((cost, i) => {
    const share = total ? cost / total : 1 / costs.length;
    const end = reached + share * timeline.duration[bar];
    times[from + i] = [reached, end];
    reached = end;
  });
}

/** The scene of one region. */
class ArenaScene {
  constructor(region, arenas, times) {
    this.region = region;
    this.axis = arenas.axis;
    this.times = times;
    this.byTime = false;
    this.label = `Memory ${region.memory}, region ${region.name}: ${region.boxes.length} buffers, from first to last use, at their offsets.`;
    this.height = AREA.height;
    this.inset = { left: AREA.label, top: 8, right: 16, bottom: AREA.axis };
    this.arrange();
  }

  /** Compute the rectangles, along the order of steps or along time. */
  arrange() {
    this.boxes = this.region.boxes.map(([places, offset, nbytes, names]) => {
      const spans = places.map((place) => (this.byTime ? this.times[place] : [place, place + 1]));
      const from = Math.min(...spans.map(([start]) => start));
      const to = Math.max(...spans.map(([, end]) => end));
      return { places, offset, nbytes, names, from, to };
    });
    const ends = this.byTime ? this.times.map(([, end]) => end) : [this.axis.step.length];
    const starts = this.byTime ? this.times.map(([start]) => start) : [0];
    this.from = Math.min(...starts);
    this.length = Math.max(...ends) - this.from;
  }

  bounds() {
    return [this.from, 0, this.length, Math.max(this.region.nbytes, 1)];
  }

  top(box) {
    return this.region.nbytes - box.offset - box.nbytes;
  }

  hit(x, y) {
    for (let i = this.boxes.length - 1; i >= 0; i -= 1) {
      const box = this.boxes[i];
      const top = this.top(box);
      if (x >= box.from && x <= box.to && y >= top && y <= top + box.nbytes) return box;
    }
    return null;
  }

  tip(box) {
    const names = box.names.map(text);
    const more = names.length > 6 ? [`and ${names.length - 6} more on the same bytes`] : [];
    return [
      ...names.slice(0, 6),
      ...more,
      `${bytes(box.nbytes)} at ${count(box.offset)}`,
      `from ${this.placeName(box.places[0])}`,
      `to ${this.placeName(box.places[box.places.length - 1])}`,
    ];
  }

  placeName(place) {
    if (place === 0) return "the feeding";
    if (place === this.axis.step.length - 1) return "the fetching";
    const node = this.axis.node[place];
    return node < 0 ? `step ${this.axis.step[place]}` : data.nodes.name[node];
  }

  pick(box) {
    const node = box.places.map((place) => this.axis.node[place]).find((one) => one >= 0);
    if (node !== undefined) selection.pick(node, "memory");
  }

  draw(context, view) {
    this.drawScale(context, view);
    if (this.byTime) drawTimeAxis(context, view, view.height - this.inset.bottom);
    else this.drawOrderAxis(context, view);
    context.save();
    context.beginPath();
    context.rect(this.inset.left, this.inset.top, view.innerWidth, view.innerHeight);
    context.clip();
    for (const box of this.boxes) this.drawBox(context, view, box);
    context.restore();
    context.strokeStyle = theme.get("line");
    context.lineWidth = 1;
    context.strokeRect(this.inset.left, this.inset.top, view.innerWidth, view.innerHeight);
  }

  drawScale(context, view) {
    const span = view.innerHeight / view.scaleY;
    const step = tickStep(span, 4);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let tick = 0; tick * step <= this.region.nbytes; tick += 1) {
      const y = view.toScreenY(this.region.nbytes - tick * step);
      if (y < this.inset.top - 1 || y > view.height - this.inset.bottom + 1) continue;
      context.fillStyle = theme.get("muted");
      context.fillText(bytes(tick * step), this.inset.left - 8, y);
    }
    context.textAlign = "left";
  }

  drawOrderAxis(context, view) {
    const step = Math.max(tickStep(view.innerWidth / view.scaleX, view.innerWidth / 90), 1);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillStyle = theme.get("muted");
    for (let tick = 0; tick <= this.length; tick += step) {
      const x = view.toScreenX(tick);
      if (x < this.inset.left || x > view.width - 60) continue;
      context.fillText(tick ? count(tick) : "feed", x, view.height - this.inset.bottom + 6);
    }
  }

  drawBox(context, view, box) {
    const x = view.toScreenX(box.from);
    const y = view.toScreenY(this.top(box));
    const [width, height] = [(box.to - box.from) * view.scaleX, box.nbytes * view.scaleY];
    if (x + width < 0 || x > view.width || y + height < 0 || y > view.height) return;
    const device = this.device(box);
    const chosen = selection.node !== null && box.places.some((place) => this.axis.node[place] === selection.node);
    context.fillStyle = device ? tint(device, box === view.hovered ? 0.4 : 0.66) : theme.get("feed");
    context.fillRect(x, y, Math.max(width, 1), Math.max(height, 0.6));
    if (width > 2 && height > 2) {
      context.strokeStyle = chosen ? theme.get("accent") : device ? hue(device) : theme.get("muted");
      context.lineWidth = chosen ? 2.4 : 0.7;
      context.strokeRect(x, y, width, height);
    }
    const left = Math.max(x, this.inset.left);
    const room = Math.min(x + width, view.width) - left - 10;
    if (room < 24 || height < 14) return;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.get("ink");
    context.textBaseline = "middle";
    context.fillText(fitted(context, text(box.names[0]), room), left + 5, y + height / 2);
  }

  /** The device of the node that touches the bytes first. */
  device(box) {
    const node = this.axis.node[box.places[0]];
    return node < 0 ? null : text(data.nodes.device[node]);
  }
}
