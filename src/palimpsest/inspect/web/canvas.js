// A canvas that is drawn at the resolution of the screen and drawn again when its size changes.

class Sheet {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.draw = draw;
    this.waiting = false;
    new ResizeObserver(() => this.soon()).observe(canvas);
  }

  // Once before the next frame, however often it is asked for.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const { width, height } = this.canvas.getBoundingClientRect();
      if (!width || !height) return;
      const scale = window.devicePixelRatio || 1;
      const pixels = [Math.round(width * scale), Math.round(height * scale)];
      if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
        [this.canvas.width, this.canvas.height] = pixels;
      }
      const pen = this.canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      this.draw(pen, width, height);
    });
  }
}
