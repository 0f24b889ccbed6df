// The text of one model. What is far from the window is plain text, laid out exactly as its tokens
// would be; tokens get elements of their own only near it, so that a long text costs little.

const CHUNK = 400; // cells, up to the end of their line
const LONGEST_CHUNK = 1600;
const PAGE = 200; // tokens of a Page Up

class TextPane {
  constructor(model, root, mode, on) {
    this.model = model;
    this.root = root;
    this.mode = mode;
    this.on = on;
    this.focused = 0; // the one token that Tab reaches
    this.now = null;
    this.found = [];
    this.range = null;
    this.chunks = this.cut();
    this.lows = this.chunks.map((chunk) => chunk.low);
    root.append(...this.chunks.map((chunk) => chunk.node));
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) this.near(entry.target._chunk, entry.isIntersecting);
    }, { root, rootMargin: "250px 0px" });
    for (const chunk of this.chunks) this.observer.observe(chunk.node);
    this.fill(this.chunks[0]);
    this.listen();
  }

  cut() {
    const m = this.model, chunks = [], starts = new Set(m.starts);
    let low = 0;
    for (let c = 1; c <= m.cells; c++) {
      const size = c - low, before = m.text[m.ends[c - 1] - 1];
      const starting = c < m.cells && starts.has(m.first[c]);
      if (c < m.cells && !starting && !(size >= CHUNK && before === "\n")
        && !(size >= LONGEST_CHUNK && before === " ") && size < 2 * LONGEST_CHUNK) continue;
      const node = element("div", { class: "chunk", role: "group" });
      node.textContent = m.text.slice(m.startOf(low), m.ends[c - 1]);
      const chunk = { node, low, high: c, spans: null };
      if (low && starts.has(m.first[low])) node.classList.add("starts");
      node._chunk = chunk;
      chunks.push(chunk);
      low = c;
    }
    return chunks;
  }

  chunkOf(cell) {
    return this.chunks[lastAtMost(this.lows, cell)];
  }

  near(chunk, isNear) {
    chunk.isNear = isNear;
    if (isNear) this.fill(chunk);
    else this.empty(chunk);
  }

  fill(chunk) {
    if (chunk.spans) return;
    const m = this.model, spans = [];
    for (let cell = chunk.low; cell < chunk.high; cell++) {
      const span = document.createElement("span");
      span.textContent = m.shown(cell);
      span._cell = cell;
      span.setAttribute("role", "option");
      span.setAttribute("aria-label", this.describe(cell));
      span.className = `t ${colourClass(this.mode, m, cell)}`;
      spans.push(span);
    }
    chunk.spans = spans;
    chunk.node.replaceChildren(...spans);
    this.decorate(chunk);
  }

  // A chunk that holds the focus or an end of the browser's selection stays as it is.
  empty(chunk) {
    if (!chunk.spans || this.holds(chunk)) return;
    chunk.spans = null;
    chunk.node.textContent = this.model.text.slice(
      this.model.startOf(chunk.low), this.model.ends[chunk.high - 1]);
  }

  holds(chunk) {
    const cell = this.model.cellOf[this.focused], selection = document.getSelection();
    return (chunk.low <= cell && cell < chunk.high)
      || [selection.anchorNode, selection.focusNode].some((node) => chunk.node.contains(node));
  }

  describe(cell) {
    const m = this.model, bits = m.sum(m.surprise, cell);
    const names = [];
    for (let i = m.first[cell]; i < m.after(cell); i++) names.push(m.name(i));
    const what = names.length > 1 ? m.shown(cell) : names[0];
    return `${what}, ${bits === null ? "not predicted" : `${number(bits, 2)} bits`}`;
  }

  span(token) {
    const cell = this.model.cellOf[token], chunk = this.chunkOf(cell);
    return chunk.spans ? chunk.spans[cell - chunk.low] : null;
  }

  decorate(chunk) {
    const m = this.model, cell = m.cellOf[this.focused];
    if (chunk.low <= cell && cell < chunk.high) chunk.spans[cell - chunk.low].tabIndex = 0;
    if (this.range) this.paintRange(chunk, true);
    for (const token of this.found) this.span(token)?.classList.add("found");
    if (this.now !== null) this.span(this.now)?.classList.add("now");
  }

  recolour(mode) {
    this.mode = mode;
    for (const chunk of this.chunks) {
      if (!chunk.spans) continue;
      chunk.spans.forEach((span, i) => {
        span.className = `t ${colourClass(mode, this.model, chunk.low + i)}`;
      });
      this.decorate(chunk);
    }
  }

  show(token, found) {
    if (this.now !== null) this.span(this.now)?.classList.remove("now");
    for (const old of this.found) this.span(old)?.classList.remove("found");
    this.now = token;
    this.found = found;
    for (const place of found) this.span(place)?.classList.add("found");
    if (token !== null) this.span(token)?.classList.add("now");
  }

  select(range) {
    const filled = this.chunks.filter((chunk) => chunk.spans);
    if (this.range) for (const chunk of filled) this.paintRange(chunk, false);
    this.range = range;
    if (range) for (const chunk of filled) this.paintRange(chunk, true);
  }

  paintRange(chunk, on) {
    const m = this.model;
    const low = Math.max(m.cellOf[this.range[0]], chunk.low);
    const high = Math.min(m.cellOf[this.range[1]] + 1, chunk.high);
    for (let cell = low; cell < high; cell++) {
      chunk.spans[cell - chunk.low].classList.toggle("range", on);
    }
  }

  reveal(token) {
    const chunk = this.chunkOf(this.model.cellOf[token]);
    this.fill(chunk);
    const span = this.span(token), box = this.root.getBoundingClientRect();
    const at = span.getBoundingClientRect();
    if (at.top < box.top + 8 || at.bottom > box.bottom - 8) {
      this.root.scrollTop += at.top - box.top - box.height / 3;
    }
    return span;
  }

  focus(token) {
    const old = this.chunkOf(this.model.cellOf[this.focused]);
    this.span(this.focused)?.removeAttribute("tabindex");
    this.focused = token;
    const span = this.reveal(token);
    span.tabIndex = 0;
    span.focus({ preventScroll: true });
    if (old.spans && old.isNear === false) this.empty(old);
  }

  firstVisible() {
    const box = this.root.getBoundingClientRect();
    const hit = document.elementFromPoint(box.left + 14, box.top + 14);
    return hit && hit._cell !== undefined && this.root.contains(hit)
      ? this.model.first[hit._cell] : null;
  }

  listen() {
    const cellAt = (event) => event.target._cell;
    this.root.addEventListener("pointerover", (event) => {
      const cell = cellAt(event);
      if (cell !== undefined) this.on.hover(this.model.first[cell]);
    });
    this.root.addEventListener("pointerleave", () => this.on.hover(null));
    this.root.addEventListener("focusin", () => this.on.focus(this.focused));
    // A browser does not select from an element that can have the focus, so only the one that has it
    // can, and not while the mouse is down.
    this.root.addEventListener("pointerdown", () => {
      this.span(this.focused)?.removeAttribute("tabindex");
    });
    document.addEventListener("pointerup", () => this.span(this.focused)?.setAttribute("tabindex", 0));
    this.root.addEventListener("click", (event) => {
      const cell = cellAt(event);
      if (cell === undefined || !document.getSelection().isCollapsed) return;
      this.anchor = undefined;
      this.focus(this.model.first[cell]);
    });
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("scroll", () => this.on.scroll(), { passive: true });
    document.addEventListener("selectionchange", () => this.fromBrowser());
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const last = this.model.tokens - 1, at = this.focused;
    const to = {
      ArrowLeft: () => at - 1, ArrowRight: () => at + 1,
      ArrowUp: () => this.line(-1), ArrowDown: () => this.line(1),
      PageUp: () => at - PAGE, PageDown: () => at + PAGE, Home: () => 0, End: () => last,
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const token = Math.min(last, Math.max(0, to()));
    if (event.shiftKey) {
      this.anchor ??= at;
      this.on.range([Math.min(this.anchor, token), Math.max(this.anchor, token)]);
    } else this.anchor = undefined;
    this.focus(token);
  }

  // The token above or below, as the text is laid out.
  line(direction) {
    const span = this.reveal(this.focused), at = span.getClientRects()[0];
    const height = parseFloat(getComputedStyle(this.root).lineHeight);
    const box = this.root.getBoundingClientRect();
    const x = Math.min(Math.max(at.left + 3, box.left + 12), box.right - 24);
    for (let lines = 1; lines < 4; lines++) {
      const y = at.top + at.height / 2 + direction * lines * height;
      if (y < box.top + 4 || y > box.bottom - 4) {
        this.root.scrollTop += direction * box.height / 3;
        return this.lineFrom(span, x, direction, height);
      }
      for (const left of [x, x - 60, box.left + 14]) {
        const hit = document.elementFromPoint(left, y);
        if (hit?._cell !== undefined && this.root.contains(hit)) return this.model.first[hit._cell];
      }
    }
    return this.focused + direction * 40;
  }

  lineFrom(span, x, direction, height) {
    const at = span.getClientRects()[0];
    const hit = document.elementFromPoint(x, at.top + at.height / 2 + direction * height);
    return hit?._cell !== undefined ? this.model.first[hit._cell] : this.focused + direction * 40;
  }

  // What the reader marks with the mouse or a finger.
  fromBrowser() {
    const selection = document.getSelection();
    if (selection.isCollapsed || !this.root.contains(selection.anchorNode)
      || !this.root.contains(selection.focusNode)) return;
    const range = selection.getRangeAt(0);
    const low = this.cellAt(range.startContainer, range.startOffset, false);
    const high = this.cellAt(range.endContainer, range.endOffset, true);
    if (low === null || high === null || high < low) return;
    this.on.range([this.model.first[low], this.model.after(high) - 1]);
  }

  cellAt(node, offset, isEnd) {
    if (node === this.root) return null;
    const holder = node.nodeType === Node.TEXT_NODE ? node.parentNode : node;
    if (holder._cell !== undefined) {
      if (isEnd && offset === 0 && holder._cell > 0) return holder._cell - 1;
      const atEnd = !isEnd && offset > 0 && offset === node.textContent.length;
      return Math.min(holder._cell + (atEnd ? 1 : 0), this.model.cells - 1);
    }
    const chunk = holder._chunk;
    if (!chunk) return null;
    if (node === holder) return Math.min(chunk.low + offset, chunk.high) - (isEnd ? 1 : 0);
    const unit = this.model.startOf(chunk.low) + offset - (isEnd ? 1 : 0);
    return Math.min(lastAtMost(this.model.ends, unit) + 1, this.model.cells - 1);
  }
}
