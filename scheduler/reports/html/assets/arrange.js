// From a layout in layers to pixels: rows without overlap, folded into columns as text is on a page.

const NODE = { width: 132, height: 38 };
const GAP = { x: 26, y: 30, column: 56 };
const CHAIN_SHARE = 0.35; // of a node's width: what a passing edge is given, as in layout.py
const MOST_COLUMNS = 80;

/**
 * Middles nearest to those wanted at which things of these widths do not overlap
 * (isotonic regression; the same as `spread` in layout.py, for widths that change).
 */
function spread(wanted, widths) {
  const starts = [];
  let reach = 0;
  for (const width of widths) {
    starts.push(reach + width / 2);
    reach += width;
  }
  const blocks = [];
  wanted.forEach((want, i) => {
    let block = { mean: want - starts[i], size: 1 };
    while (blocks.length && blocks[blocks.length - 1].mean >= block.mean) {
      const other = blocks.pop();
      const size = block.size + other.size;
      block = { mean: (block.mean * block.size + other.mean * other.size) / size, size };
    }
    blocks.push(block);
  });
  const shifts = blocks.flatMap((block) => new Array(block.size).fill(block.mean));
  return starts.map((start, i) => start + shifts[i]);
}

/**
 * Turn a layout in layers into pixels. `sizes` are those of its vertices; rows are folded into
 * columns, as text is on a page, where the picture would be too tall.
 */
function arrange(layout, sizes, aspect) {
  const unit = NODE.width + GAP.x;
  const rows = layerRows(layout, sizes, unit);
  for (const row of rows) {
    row.things.sort((a, b) => a.wanted - b.wanted);
    const xs = spread(row.things.map((one) => one.wanted), row.things.map((one) => one.width + one.gap));
    row.things.forEach((one, i) => (one.x = xs[i]));
    row.left = Math.min(...row.things.map((one) => one.x - one.width / 2));
    row.right = Math.max(...row.things.map((one) => one.x + one.width / 2));
    row.height = Math.max(...row.things.map((one) => one.height));
  }
  const [width, height] = fold(rows, aspect);
  const at = sizes.map(() => null);
  const chains = {};
  for (const row of rows) {
    for (const one of row.things) {
      const point = { x: one.x + row.shift, y: row.y + (row.height - one.height) / 2, gutter: row.gutter };
      if (one.chain === undefined) at[one.vertex] = point;
      else (chains[one.vertex] ??= [])[one.chain] = { ...point, top: row.y, bottom: row.y + row.height };
    }
  }
  return { at, chains, width, height };
}

function layerRows(layout, sizes, unit) {
  const rows = [];
  const add = (layer, thing) => {
    while (rows.length <= layer) rows.push({ things: [] });
    rows[layer].things.push(thing);
  };
  layout.layer.forEach((layer, vertex) => {
    add(layer, { vertex, wanted: layout.x[vertex] * unit, ...sizes[vertex], gap: GAP.x });
  });
  for (const [vertex, xs] of Object.entries(layout.chain)) {
    const narrow = { width: unit * CHAIN_SHARE, height: 0, gap: 0 };
    xs.forEach((x, i) => {
      add(layout.layer[vertex] + 1 + i, { vertex: Number(vertex), chain: i, wanted: x * unit, ...narrow });
    });
  }
  return rows;
}

/** Give each row its place, in the columns that can be shown largest; return width and height. */
function fold(rows, aspect) {
  const total = rows.reduce((sum, row) => sum + row.height + GAP.y, 0);
  const most = Math.min(rows.length, MOST_COLUMNS, Math.ceil(total / NODE.height / 3));
  let best = null;
  for (let columns = 1; columns <= most; columns += 1) {
    const cuts = cut(rows, total / columns);
    const [width, height] = measure(rows, cuts);
    const scale = Math.min(aspect / width, 1 / height);
    if (best === null || scale > best.scale) best = { scale, cuts, width, height };
  }
  if (best === null) return [0, 0];
  let x = 0;
  best.cuts.forEach((first, i) => {
    const column = rows.slice(first, best.cuts[i + 1]);
    const [left, right] = sides(column);
    let y = 0;
    for (const row of column) {
      Object.assign(row, { shift: x - left, gutter: x - GAP.column / 2, y });
      y += row.height + GAP.y;
    }
    x += right - left + GAP.column;
  });
  return [best.width, best.height];
}

/** Where columns begin, none of which is much taller than a limit. */
function cut(rows, limit) {
  const cuts = [0];
  let y = 0;
  rows.forEach((row, i) => {
    if (y > 0 && y + row.height / 2 > limit) {
      cuts.push(i);
      y = 0;
    }
    y += row.height + GAP.y;
  });
  return cuts;
}

function measure(rows, cuts) {
  let [width, tallest] = [-GAP.column, 0];
  cuts.forEach((first, i) => {
    const column = rows.slice(first, cuts[i + 1]);
    const [left, right] = sides(column);
    width += right - left + GAP.column;
    tallest = Math.max(tallest, column.reduce((sum, row) => sum + row.height + GAP.y, -GAP.y));
  });
  return [width, tallest];
}

function sides(column) {
  return [Math.min(...column.map((row) => row.left)), Math.max(...column.map((row) => row.right))];
}
