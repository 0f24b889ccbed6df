// The memory matrices of one layer, heads side by side, at the recorded position that fits the token.

class MemoryPanel {
  constructor(model, root) {
    this.model = model;
    this.part = model.memories[0];
    this.at = null;
    this.heading = element("p", { class: "note memory-at" });
    this.root = element("div", { class: "matrices" });
    if (model.memories.length > 1) {
      const pick = element("select", { "aria-label": "layer" }, ...model.memories.map((part, i) => (
        element("option", { value: i }, part.layer === "" ? "memory" : `layer ${part.layer}`))));
      pick.addEventListener("change", () => {
        this.part = model.memories[pick.value];
        this.make();
      });
      root.append(element("label", {}, "Show ", pick));
    }
    root.append(this.heading, this.root, element("p", { class: "note" }, this.rule()));
    this.make();
  }

  rule() {
    const { positions, shape, size } = this.part;
    const smaller = size[0] < shape[0] || size[1] < shape[1]
      ? ` Each matrix of ${shape[0]} × ${shape[1]} is reduced to ${size[0]} × ${size[1]} cells; a cell `
        + "is the entry of largest magnitude in its block." : "";
    return `Recorded after ${positions.length.toLocaleString("en")} of `
      + `${this.model.tokens.toLocaleString("en")} tokens, evenly spaced, so that the page stays small `
      + `(at most 64 positions, 128 matrices, 24 × 24 cells).${smaller}`;
  }

  make() {
    this.canvases = this.part.names.map((name, h) => {
      const [height, width] = this.part.size;
      const canvas = element("canvas", { width, height, role: "img", "aria-label": `memory of head ${name}` });
      return { canvas, figure: element("figure", {}, canvas, element("figcaption", {},
        `head ${name}, ±${number(this.part.scale[h])}`)) };
    });
    this.root.replaceChildren(...this.canvases.map(({ figure }) => figure));
    this.at ??= 0;
    this.draw();
  }

  // The last recorded position up to the token; before the first one, the first.
  show(token) {
    const at = Math.max(0, lastAtMost(this.part.positions, token));
    if (at === this.at && this.heading.textContent) return;
    this.at = at;
    this.draw();
  }

  draw() {
    const { positions, values, size: [height, width] } = this.part, cells = height * width;
    const token = positions[this.at];
    this.heading.textContent = `After token ${(token + 1).toLocaleString("en")} (${this.model.name(token)}).`;
    const rgb = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
    const paper = rgb(styleColour("--paper")), hot = rgb(styleColour("--hot")), cool = rgb(styleColour("--cool"));
    this.canvases.forEach(({ canvas }, h) => {
      const pen = canvas.getContext("2d"), image = pen.createImageData(width, height);
      const low = (this.at * this.canvases.length + h) * cells;
      for (let i = 0; i < cells; i++) {
        const share = values[low + i] / 127, end = share < 0 ? cool : hot;
        for (let k = 0; k < 3; k++) image.data[4 * i + k] = paper[k] + (end[k] - paper[k]) * Math.abs(share);
        image.data[4 * i + 3] = 255;
      }
      pen.putImageData(image, 0, 0);
    });
  }
}
