// What the names of nodes begin with: areas of the graph that belong together.

const MOST_AREAS = 40;

/** The first `depth` parts of a name, without its last one. */
function prefixOf(name, depth) {
  const parts = name.split(/(?<=[/.])/);
  return parts.slice(0, Math.min(depth, parts.length - 1)).join("").replace(/[/.]$/, "");
}

/**
 * Rectangles around nodes of one prefix, a column each: as deep as there is room for their words.
 * What all names begin with tells nothing apart, and is left out of the words.
 */
function prefixAreas(model, names, least) {
  let found = [];
  for (let depth = 1; depth <= 5; depth += 1) {
    const areas = areasAt(model, names, depth).filter((area) => area.nodes > 1 && area.height >= least);
    if (areas.length > MOST_AREAS || areas.length < found.length) break;
    if (new Set(areas.map(({ prefix }) => prefix)).size > 1) found = areas;
  }
  const shared = sharedLength(found.map(({ prefix }) => prefix));
  return found.map((area, i) => ({ ...area, words: i && found[i - 1].prefix === area.prefix ? "" : area.prefix.slice(shared), room: roomOf(found, i) }));
}

/** How many letters all of them begin with, up to a separator. */
function sharedLength(prefixes) {
  const parts = prefixes[0]?.split(/(?<=[/.])/) ?? [];
  let length = 0;
  for (const part of parts.slice(0, -1)) {
    if (!prefixes.every((one) => one.startsWith(part, length))) break;
    length += part.length;
  }
  return length;
}

/** The width of an area and of those that go on with it in the next columns. */
function roomOf(areas, first) {
  let last = first;
  while (areas[last + 1]?.prefix === areas[first].prefix && areas[last + 1].gutter > areas[last].gutter) last += 1;
  return areas[last].x + areas[last].width - areas[first].x;
}

/** Runs of boxes of one prefix, from top to bottom of each column. */
function areasAt(model, names, depth) {
  const boxes = model.boxes.filter((box) => box.kind === "node").sort((a, b) => a.gutter - b.gutter || a.y - b.y);
  const areas = [];
  for (const box of boxes) {
    const prefix = prefixOf(names[box.index], depth);
    const last = areas.findLast((area) => area.prefix === prefix && area.gutter === box.gutter);
    if (!prefix) continue;
    if (last && box.y <= last.y + last.height + 2 * (NODE.height + GAP.y)) {
      const right = Math.max(last.x + last.width, box.x + box.width + 6);
      last.x = Math.min(last.x, box.x - 6);
      last.width = right - last.x;
      last.height = box.y + box.height + 6 - last.y;
      last.nodes += 1;
    } else {
      areas.push({ prefix, gutter: box.gutter, x: box.x - 6, y: box.y - 6, width: box.width + 12, height: box.height + 12, nodes: 1 });
    }
  }
  return areas;
}
