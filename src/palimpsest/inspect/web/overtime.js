// One quantity of every gate or head along the text: a row each, tokens from left to right.

const ROW = 14; // pixels
const LABEL = 34; // pixels for the row's name
const CELL = 2; // pixels of one mean

class OverTime {
  constructor(model, root, on) {
    this.model = model;
    this.on = on;
    this.now = 0;
    this.range = null;
    this.choices = this.quantities();
    this.choice = this.choices[0];
    const pick = element("select", { "aria-label": "quantity" },
      ...this.choices.map(({ title }, i) => element("option", { value: i }, title)));
    pick.addEventListener("change", () => {
      this.choice = this.choices[pick.value];
      this.resize();
    });
    this.scale = element("p", { class: "note" });
    const under = element("canvas", { "aria-hidden": "true" });
    this.over = element("canvas", { tabindex: "0", role: "img" });
    this.plot = element("div", { class: "rows" }, under, this.over);
    root.append(element("label", {}, "Show ", pick), this.scale,
      element("div", { class: "scroll" }, this.plot));
    this.below = new Sheet(under, (pen, width, height) => this.drawRows(pen, width, height));
    this.above = new Sheet(this.over, (pen, width, height) => this.drawNow(pen, width, height));
    this.listen();
    this.resize();
  }

  quantities() {
    const found = this.model.heads.map((part) => ({
      title: `${part.title}${part.layer === "" ? "" : `, layer ${part.layer}`}`,
      names: Array.from({ length: part.width }, (_, h) => `${h}`),
      value: part.kind === "retention"
        ? (token, h) => Math.exp(part.values[token * part.width + h])
        : (token, h) => part.values[token * part.width + h],
    }));
    if (this.model.gates.length) {
      const gates = this.model.gates;
      found.push({ title: "gates (means)", names: gates.map((gate) => gate.name), wide: true,
        value: (token, row) => gates[row].values[token] });
    }
    return found;
  }

  get label() { return this.choice.wide ? 4 * LABEL : LABEL; }
  get span() { return this.range ?? [0, this.model.tokens - 1]; }

  // Means over equal pieces of the text in view, row by row.
  means(count) {
    const [low, high] = this.span, n = high - low + 1, bars = Math.max(1, Math.min(n, count));
    const rows = this.choice.names.map((_, row) => {
      const made = new Float32Array(bars);
      for (let bar = 0; bar < bars; bar++) {
        const start = low + Math.floor((bar * n) / bars), end = low + Math.floor(((bar + 1) * n) / bars);
        for (let i = start; i < end; i++) made[bar] += this.choice.value(i, row) / (end - start);
      }
      return made;
    });
    return rows;
  }

  resize() {
    this.plot.style.height = `${this.choice.names.length * ROW}px`;
    const [low, high] = this.span;
    this.over.setAttribute("aria-label",
      `${this.choice.title} of tokens ${low + 1} to ${high + 1}. Arrow keys move from token to token.`);
    this.below.soon();
    this.above.soon();
  }

  drawRows(pen, width, height) {
    const rows = this.means(Math.floor((width - this.label) / CELL));
    let [least, most] = [Infinity, -Infinity];
    for (const row of rows) for (const v of row) { least = Math.min(least, v); most = Math.max(most, v); }
    const [low, high] = this.span, colours = ramp("--point-low", "--point-high", 32);
    this.scale.textContent = `Tokens ${(low + 1).toLocaleString("en")} to ${(high + 1).toLocaleString("en")}; `
      + `weakest colour ${number(least, 4)}, strongest ${number(most, 4)}.`;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const wide = (width - this.label) / rows[0].length;
    rows.forEach((row, r) => {
      pen.fillStyle = styleColour("--soft");
      pen.fillText(this.choice.names[r], 0, r * ROW + ROW / 2, this.label - 6);
      row.forEach((v, i) => {
        pen.fillStyle = colours[Math.round(31 * (v - least) / (most - least || 1))] ?? "transparent";
        pen.fillRect(this.label + i * wide, r * ROW, wide + 0.3, ROW - 1);
      });
    });
  }

  drawNow(pen, width, height) {
    const [low, high] = this.span;
    if (this.now < low || this.now > high) return;
    const x = this.label + ((this.now - low + 0.5) / (high - low + 1)) * (width - this.label);
    pen.strokeStyle = styleColour("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(x - 2, 1, 4, height - 2);
  }

  show(token) {
    this.now = token;
    this.above.soon();
  }

  select(range) {
    this.range = range;
    this.resize();
  }

  listen() {
    const at = (event) => {
      const box = this.over.getBoundingClientRect(), [low, high] = this.span;
      const share = (event.clientX - box.left - this.label) / (box.width - this.label);
      if (share < 0) return null;
      return Math.min(high, low + Math.floor(share * (high - low + 1)));
    };
    this.over.addEventListener("pointermove", (event) => this.on.hover(at(event)));
    this.over.addEventListener("pointerleave", () => this.on.hover(null));
    this.over.addEventListener("click", (event) => {
      const token = at(event);
      if (token !== null) this.on.go(token);
    });
    this.over.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.on.step(step);
    });
  }
}
