// The surprise along the whole text: a bar for each few pixels, and where the reader is.

const BAR = 3; // pixels

class Minimap {
  constructor(model, canvas, on) {
    this.model = model;
    this.canvas = canvas;
    this.now = 0;
    this.visible = null;
    this.range = null;
    this.total = new Float64Array(model.tokens + 1);
    for (let i = 0; i < model.tokens; i++) {
      this.total[i + 1] = this.total[i] + (model.surprise[i] || 0);
    }
    this.sheet = new Sheet(canvas, (pen, width, height) => this.draw(pen, width, height));
    canvas.setAttribute("aria-valuemax", model.tokens);
    this.show(0);
    const go = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      on.go(this.within(Math.floor(share * model.tokens)));
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
    canvas.addEventListener("keydown", (event) => {
      const step = Math.max(1, Math.round(model.tokens / 100));
      const to = {
        ArrowLeft: this.now - step, ArrowRight: this.now + step,
        ArrowDown: this.now - step, ArrowUp: this.now + step,
        PageUp: this.now + 10 * step, PageDown: this.now - 10 * step, Home: 0, End: model.tokens,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      on.go(this.within(to));
    });
  }

  within(token) { return Math.min(this.model.tokens - 1, Math.max(0, token)); }

  draw(pen, width, height) {
    const n = this.model.tokens, bars = Math.max(1, Math.min(n, Math.floor(width / BAR)));
    const means = new Float32Array(bars);
    let most = 1;
    const edge = (bar) => Math.floor((bar * n) / bars);
    for (let bar = 0; bar < bars; bar++) {
      means[bar] = (this.total[edge(bar + 1)] - this.total[edge(bar)]) / (edge(bar + 1) - edge(bar));
      most = Math.max(most, means[bar]);
    }
    const x = (token) => (token / n) * width;
    if (this.visible) {
      pen.fillStyle = styleColour("--line");
      const [low, high] = this.visible;
      pen.fillRect(x(low), 0, Math.max(3, x(high) - x(low)), height);
    }
    const colours = ramp("--point-low", "--point-high", BITS.length + 1);
    for (let bar = 0; bar < bars; bar++) {
      pen.fillStyle = colours[binOf(BITS, means[bar])];
      const tall = (means[bar] / most) * (height - 6);
      pen.fillRect((bar * width) / bars, height - tall, width / bars - 0.5, tall);
    }
    if (this.range) {
      pen.fillStyle = styleColour("--accent");
      pen.fillRect(x(this.range[0]), 0, Math.max(2, x(this.range[1] + 1) - x(this.range[0])), 4);
    }
    pen.fillStyle = styleColour("--ink");
    pen.fillRect(x(this.now) - 1, 0, 2, height);
  }

  show(token) {
    this.now = token ?? this.now;
    this.canvas.setAttribute("aria-valuenow", this.now + 1);
    this.canvas.setAttribute("aria-valuetext", `token ${this.now + 1} of ${this.model.tokens}`);
    this.sheet.soon();
  }
}
