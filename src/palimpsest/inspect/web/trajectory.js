// The way of the state, projected. All points lie on one canvas, which is drawn once; what changes
// with the pointer is on another one above it.

const REACH = 14; // pixels between the pointer and the point that it means
const MARGIN = 16;
const TAIL = 12; // tokens of the way that leads to the point shown

class Trajectory {
  constructor(model, root, on) {
    this.model = model;
    this.on = on;
    this.now = null;
    this.found = [];
    this.range = null;
    const under = element("canvas", { "aria-hidden": "true" });
    const shares = model.shares.map((share) => `${Math.round(share * 100)} %`).join(" and ");
    this.over = element("canvas", {
      tabindex: "0", role: "img",
      "aria-label": `States of ${model.tokens} tokens in two directions with ${shares} of the `
        + "variance. Arrow keys move from token to token.",
    });
    root.append(under, this.over);
    this.below = new Sheet(under, (pen, width, height) => this.drawPoints(pen, width, height));
    this.above = new Sheet(this.over, (pen) => this.drawMarks(pen));
    this.listen();
  }

  place(width, height) {
    const p = this.model.points, n = this.model.tokens;
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < n; i++) {
      left = Math.min(left, p[2 * i]); right = Math.max(right, p[2 * i]);
      low = Math.min(low, p[2 * i + 1]); high = Math.max(high, p[2 * i + 1]);
    }
    // one scale for both directions, so that distances can be compared
    const scale = Math.min((width - 2 * MARGIN) / (right - left || 1),
      (height - 2 * MARGIN) / (high - low || 1));
    this.x = new Float32Array(n);
    this.y = new Float32Array(n);
    this.grid = new Map();
    for (let i = 0; i < n; i++) {
      this.x[i] = width / 2 + (p[2 * i] - (left + right) / 2) * scale;
      this.y[i] = height / 2 - (p[2 * i + 1] - (low + high) / 2) * scale;
      const key = this.box(this.x[i], this.y[i]);
      if (!this.grid.has(key)) this.grid.set(key, []);
      this.grid.get(key).push(i);
    }
  }

  box(x, y) { return Math.floor(x / REACH) * 65536 + Math.floor(y / REACH); }

  nearest(x, y) {
    let best = null, least = REACH * REACH;
    for (let dx = -1; dx <= 1; dx++) {
      for (let dy = -1; dy <= 1; dy++) {
        for (const i of this.grid?.get(this.box(x + dx * REACH, y + dy * REACH)) ?? []) {
          const away = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
          if (away < least) [least, best] = [away, i];
        }
      }
    }
    return best;
  }

  drawPoints(pen, width, height) {
    this.place(width, height);
    pen.fillStyle = styleColour("--panel");
    pen.fillRect(0, 0, width, height);
    const colours = ramp("--point-low", "--point-high", BITS.length + 1);
    const lists = colours.map(() => []);
    for (let i = 0; i < this.model.tokens; i++) {
      lists[binOf(BITS, this.model.surprise[i])].push(i);
    }
    const size = this.model.tokens > 5000 ? 2 : 3;
    lists.forEach((list, bin) => {
      pen.fillStyle = colours[bin];
      for (const i of list) pen.fillRect(this.x[i] - size / 2, this.y[i] - size / 2, size, size);
    });
    this.above.soon();
  }

  way(pen, low, high) {
    pen.beginPath();
    for (let i = low; i <= high; i++) {
      // no line from one document to the next: the state starts anew
      if (i === low || this.starts.has(i)) pen.moveTo(this.x[i], this.y[i]);
      else pen.lineTo(this.x[i], this.y[i]);
    }
    pen.stroke();
  }

  drawMarks(pen) {
    if (!this.x) return;
    this.starts ??= new Set(this.model.starts);
    const accent = styleColour("--accent"), ink = styleColour("--ink");
    pen.lineJoin = "round";
    if (this.range) {
      const [low, high] = this.range;
      pen.strokeStyle = accent;
      pen.lineWidth = high - low > 400 ? 0.8 : 1.6;
      this.way(pen, low, high);
      pen.lineWidth = 2;
      pen.fillStyle = styleColour("--paper");
      pen.beginPath();
      pen.arc(this.x[low], this.y[low], 5, 0, 7);
      pen.fill(); pen.stroke();
      pen.fillRect(this.x[high] - 5, this.y[high] - 5, 10, 10);
      pen.strokeRect(this.x[high] - 5, this.y[high] - 5, 10, 10);
    }
    if (this.now === null) return;
    pen.strokeStyle = ink;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.55;
    this.way(pen, Math.max(0, this.now - TAIL), this.now);
    pen.globalAlpha = 1;
    for (const token of this.found) {
      pen.strokeStyle = accent;
      pen.strokeRect(this.x[token] - 4, this.y[token] - 4, 8, 8);
    }
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.x[this.now], this.y[this.now], 7, 0, 7);
    pen.stroke();
  }

  show(token, found) {
    [this.now, this.found] = [token, found];
    this.above.soon();
  }

  select(range) {
    this.range = range;
    this.above.soon();
  }

  listen() {
    const at = (event) => {
      const box = this.over.getBoundingClientRect();
      return this.nearest(event.clientX - box.left, event.clientY - box.top);
    };
    let meant = null;
    for (const kind of ["pointermove", "pointerdown"]) {
      this.over.addEventListener(kind, (event) => {
        meant = at(event);
        this.on.hover(meant);
      });
    }
    this.over.addEventListener("pointerleave", () => this.on.hover(null));
    // not where the click is: its place is rounded, and another point may be nearer to that
    this.over.addEventListener("click", () => {
      if (meant !== null) this.on.go(meant);
    });
    this.over.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.on.step(step);
    });
  }
}
