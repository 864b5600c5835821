// The page: its parts in order, and what ties them together.

const views = { graph: null, timelines: [], arenas: [] };

function graphSection() {
  const scene = new GraphScene(data.graph);
  const view = new CanvasView(scene);
  scene.view = view;
  views.graph = view;
  selection.listeners.push((node, origin) => {
    if (origin === "graph") view.redraw();
    else scene.reveal(node);
  });
  const tools = view.tools();
  if (scene.model.graph.groups.name.length > 1) tools.unshift(groupButton(scene));
  tools.unshift(...new Search(scene).elements);
  const hint = "Drag to move; Ctrl and wheel, or + and −, to zoom; [ and ] walk along the edges. A strong outline marks the critical path, an orange line a tensor that changes devices.";
  return section("graph", "Graph", tools, element("p", { class: "hint" }, hint), element("div", { class: "split" }, view.canvas, new Details().element));
}

function groupButton(scene) {
  const words = () => (scene.model.grouped ? "Show all nodes" : "Show subgraphs");
  const made = button(words(), "Every node, or groups of them that open", () => {
    scene.showAll(!scene.model.grouped);
    made.textContent = words();
  });
  return made;
}

/** One picture of several, chosen by buttons. */
function chooser(label, names, show) {
  const buttons = names.map((name, i) => button(name, name, () => choose(i)));
  const choose = (chosen) => {
    buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(i === chosen)));
    show(chosen);
  };
  return [element("div", { class: "chooser", role: "group", "aria-label": label }, ...buttons), choose];
}

function timelineSection() {
  views.timelines = data.timelines.map((timeline) => new CanvasView(new TimelineScene(timeline)));
  const host = element("div");
  const tools = element("span");
  const [buttons, choose] = chooser("Timelines", data.timelines.map(({ title }) => title), (chosen) => {
    host.replaceChildren(views.timelines[chosen].canvas);
    tools.replaceChildren(...views.timelines[chosen].tools());
  });
  choose(Math.max(data.timelines.findIndex(({ kind }) => kind === "measured"), 0));
  selection.listeners.push(() => views.timelines.forEach((view) => view.redraw()));
  const hint = "Bars are steps, on the lane of their device; wide ones show their nodes. A lane says what items waited for before they ran: a plan for their shapes, say. The band along the top of a bar marks the critical path. Hover to see where results go.";
  return section("timeline", "Timeline", [buttons, tools], element("p", { class: "hint" }, hint), host);
}

function memorySection() {
  const { arenas } = data;
  const predicted = data.timelines.find((timeline) => timeline.kind === "predicted" && timeline.items === 1);
  const times = predicted ? placeTimes(arenas.axis, predicted) : null;
  const regions = arenas.regions.filter((region) => region.boxes.length);
  views.arenas = regions.map((region) => new CanvasView(new ArenaScene(region, arenas, times)));
  const [buttons, choose] = chooser("Axis", ["by step order", "by predicted time"], (chosen) => {
    for (const view of views.arenas) {
      view.scene.byTime = chosen === 1;
      view.scene.arrange();
      if (view.width) view.fit();
    }
  });
  choose(0);
  selection.listeners.push(() => views.arenas.forEach((view) => view.redraw()));
  const figures = views.arenas.map((view) => {
    const { region } = view.scene;
    const copies = region.copies > 1 ? `${bytes(region.nbytes)} × ${region.copies} copies` : bytes(region.nbytes);
    const title = element("span", {}, `${region.memory}, ${region.name}: `, element("strong", {}, copies), `, ${counted(region.boxes.length, "buffer")}`);
    return element("figure", {}, element("figcaption", {}, title, element("span", { class: "tools" }, ...view.tools())), view.canvas);
  });
  const hint = "A rectangle is a buffer: as wide as it is needed, as high as it has bytes, at its offset. Grey ones are fed or copied.";
  return section("memory", "Memory", times ? [buttons] : [], element("p", { class: "hint" }, hint), ...figures);
}

function tableSection(id, title, table) {
  return section(id, title, table.tools, table.element);
}

function head() {
  const themes = ["auto", "light", "dark"];
  const word = () => `Theme: ${document.documentElement.dataset.theme ?? "auto"}`;
  const toggle = button(word(), "Follow the system, light, or dark", () => {
    const { dataset } = document.documentElement;
    const next = themes[(themes.indexOf(dataset.theme ?? "auto") + 1) % themes.length];
    if (next === "auto") delete dataset.theme;
    else dataset.theme = next;
    toggle.textContent = word();
    theme.changed();
  });
  const links = [...document.querySelectorAll("section")].map((one) =>
    element("a", { href: `#${one.id}` }, one.querySelector("h2").textContent),
  );
  const nav = element("nav", { "aria-label": "Parts of this report" }, ...links, toggle);
  return element("header", { class: "head" }, element("h1", {}, data.title), nav);
}

/** Draw for paper: light, whatever the screen shows. */
function listenToPrinter() {
  let screen;
  const redraw = () => {
    theme.changed();
    for (const view of [views.graph, ...views.timelines, ...views.arenas]) if (view?.width) view.draw();
  };
  window.addEventListener("beforeprint", () => {
    screen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    redraw();
  });
  window.addEventListener("afterprint", () => {
    if (screen) document.documentElement.dataset.theme = screen;
    else delete document.documentElement.dataset.theme;
    redraw();
  });
}

function build() {
  const page = document.getElementById("page");
  const tables = {};
  const facts = [...data.facts, ...(data.profile?.facts ?? [])];
  const verdict = data.verdict ? element("p", { id: "verdict" }, data.verdict) : null;
  page.append(section("summary", "Summary", [], verdict, factList(facts), legend(), decision(), measurements()));
  if (data.graph) page.append(graphSection());
  if (data.timelines.length) page.append(timelineSection());
  if (data.arenas?.regions.some((region) => region.boxes.length)) page.append(memorySection());
  if (stepRows().length) page.append(tableSection("steps", "Steps", (tables.steps = stepTable())));
  if (data.nodes.name.length) page.append(tableSection("nodes", "Nodes", (tables.nodes = nodeTable())));
  page.before(head());
  page.after(element("footer", {}, `Made by plait ${data.version}. This file holds all its data and asks nothing of any network.`));
  document.body.append(tip);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme.changed());
  listenToPrinter();
  window.plait = { data, views, tables, selection };
  document.documentElement.dataset.ready = "true";
}

build();
