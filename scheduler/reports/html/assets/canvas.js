// A picture that can be zoomed, dragged and asked: what all drawings of the page share.

const ZOOM_STEP = 1.3;
const DRAG_START = 4; // pixels before a press becomes a drag
const tip = element("div", { id: "tip", role: "tooltip", hidden: "" });

/**
 * A scene draws itself and knows what lies where:
 *   label                what the picture shows, for those who do not see it
 *   height               of the canvas, in pixels
 *   inset                {left, top, right, bottom}: kept free of the zoomed area
 *   uniform              true: the same scale both ways; else the area is stretched to fit
 *   zoomsY               false: only x is zoomed
 *   bounds()             [x, y, width, height] of everything
 *   draw(context, view)  draws the visible part
 *   hit(x, y)            the thing at a point, or null
 *   tip(thing)           lines of text about it
 *   pick(thing)          it was clicked
 *   key(key)             true if the key meant something
 */
class CanvasView {
  constructor(scene) {
    this.scene = scene;
    this.inset = { left: 0, top: 0, right: 0, bottom: 0, ...scene.inset };
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": scene.label });
    this.context = this.canvas.getContext("2d");
    this.hovered = null;
    this.width = 0;
    this.height = scene.height;
    this.canvas.style.height = `${scene.height}px`;
    this.listen();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.canvas);
    theme.listeners.push(() => this.redraw());
  }

  tools() {
    return [
      button("−", "Zoom out (key -)", () => this.zoom(1 / ZOOM_STEP)),
      button("+", "Zoom in (key +)", () => this.zoom(ZOOM_STEP)),
      button("Fit", "Show everything (key 0)", () => this.fit()),
    ];
  }

  get innerWidth() {
    return Math.max(this.width - this.inset.left - this.inset.right, 10);
  }

  get innerHeight() {
    return Math.max(this.height - this.inset.top - this.inset.bottom, 10);
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const stretch = this.width ? width / this.width : 1;
    const refit = this.width === 0 || this.fitted;
    this.width = width;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    if (refit) this.fit();
    else if (!this.scene.uniform) this.scaleX *= stretch;
    this.draw();
  }

  /** Show a part of the scene: by default everything. */
  fit(area = this.scene.bounds()) {
    const [x, y, width, height] = area;
    const wide = this.innerWidth / Math.max(width, 1e-9);
    const high = this.innerHeight / Math.max(height, 1e-9);
    this.scaleX = this.scene.uniform ? Math.min(wide, high, 1.2) : wide;
    this.scaleY = this.scene.uniform ? this.scaleX : high;
    this.left = x - (this.innerWidth / this.scaleX - width) / 2;
    this.top = y - (this.innerHeight / this.scaleY - height) / 2;
    this.fitted = true;
    this.redraw();
  }

  zoom(factor, atX = this.inset.left + this.innerWidth / 2, atY = this.inset.top + this.innerHeight / 2) {
    const [x, y] = this.toScene(atX, atY);
    const least = Math.min(...this.leastScales());
    const applied = Math.max(factor, Math.min(1, least / this.scaleX));
    this.scaleX *= applied;
    if (this.scene.zoomsY !== false) this.scaleY *= applied;
    this.fitted = false;
    this.left = x - (atX - this.inset.left) / this.scaleX;
    if (this.scene.zoomsY !== false) this.top = y - (atY - this.inset.top) / this.scaleY;
    this.hold();
    this.redraw();
  }

  leastScales() {
    const [, , width, height] = this.scene.bounds();
    const wide = this.innerWidth / Math.max(width, 1e-9);
    return this.scene.uniform ? [wide / 2, this.innerHeight / Math.max(height, 1e-9) / 2] : [wide];
  }

  /** Keep some of the scene in sight. */
  hold() {
    const [x, y, width, height] = this.scene.bounds();
    const [seenX, seenY] = [this.innerWidth / this.scaleX, this.innerHeight / this.scaleY];
    if (this.scene.uniform) {
      this.left = Math.min(Math.max(this.left, x - seenX * 0.8), x + width - seenX * 0.2);
      this.top = Math.min(Math.max(this.top, y - seenY * 0.8), y + height - seenY * 0.2);
    } else {
      this.left = Math.min(Math.max(this.left, x), x + Math.max(width - seenX, 0));
      this.top = Math.min(Math.max(this.top, y), y + Math.max(height - seenY, 0));
    }
  }

  move(dx, dy) {
    this.left -= dx / this.scaleX;
    if (this.scene.zoomsY !== false) this.top -= dy / this.scaleY;
    this.fitted = false;
    this.hold();
    this.redraw();
  }

  center(x, y) {
    this.left = x - this.innerWidth / this.scaleX / 2;
    if (this.scene.zoomsY !== false) this.top = y - this.innerHeight / this.scaleY / 2;
    this.hold();
    this.redraw();
  }

  toScreenX(x) {
    return this.inset.left + (x - this.left) * this.scaleX;
  }

  toScreenY(y) {
    return this.inset.top + (y - this.top) * this.scaleY;
  }

  toScene(x, y) {
    return [this.left + (x - this.inset.left) / this.scaleX, this.top + (y - this.inset.top) / this.scaleY];
  }

  redraw() {
    if (this.waiting || !this.width) return;
    this.waiting = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.waiting = false;
    const ratio = this.canvas.width / this.width;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.scene.draw(this.context, this);
  }

  listen() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.hover(event);
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < DRAG_START) return undefined;
      this.hide();
      this.move(dx, dy);
      drag = { x: event.clientX, y: event.clientY, moved: true };
      return undefined;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.click(event);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("pointerleave", () => this.hide());
    canvas.addEventListener("dblclick", (event) => this.zoom(ZOOM_STEP ** 2, event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /** The wheel zooms where the picture has the focus, or with Ctrl; else the page scrolls. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    this.hide();
    this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (this.scene.key && this.scene.key(event.key)) event.preventDefault();
    else if (moves[event.key]) this.move(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(ZOOM_STEP);
    else if (event.key === "-") this.zoom(1 / ZOOM_STEP);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  at(event) {
    return this.scene.hit(...this.toScene(event.offsetX, event.offsetY), this);
  }

  click(event) {
    const thing = this.at(event);
    if (thing !== null) this.scene.pick(thing);
  }

  hover(event) {
    const thing = this.at(event);
    if (thing !== this.hovered) {
      this.hovered = thing;
      this.canvas.style.cursor = thing === null ? "grab" : "pointer";
      this.redraw();
    }
    if (thing === null) return this.hide();
    tip.replaceChildren(...this.scene.tip(thing).map((line) => element("div", {}, line)));
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
    return undefined;
  }

  hide() {
    tip.hidden = true;
    if (this.hovered !== null) {
      this.hovered = null;
      this.redraw();
    }
  }
}
