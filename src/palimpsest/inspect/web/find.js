// Search in the text, and the tokens in order of their surprise.

class Finder {
  constructor(field, status) {
    this.field = field;
    this.status = status;
    this.orders = new Map(); // by model and mode
    this.at = -1;
    this.last = null; // the token that the order led to
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.search(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") field.blur();
    });
    field.addEventListener("input", () => { status.textContent = ""; });
  }

  // The next match after the current token, or the one before it; it wraps around.
  search(direction) {
    const view = active, m = view.model, wanted = this.field.value;
    if (!wanted) { this.status.textContent = ""; return; }
    const pattern = new RegExp(wanted.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&"), "giu");
    const cell = (unit) => Math.min(m.cells - 1, lastAtMost(m.ends, unit) + 1);
    const found = [...m.text.matchAll(pattern)].map((match) => [
      m.first[cell(match.index)], m.after(cell(match.index + match[0].length - 1)) - 1]);
    if (!found.length) { this.status.textContent = "no match"; return; }
    const here = view.pinned, again = range !== null && this.field.value === this.searched;
    let k = direction > 0
      ? found.findIndex(([token]) => (again ? token > here : token >= here))
      : found.findLastIndex(([token]) => token < here);
    if (k < 0) k = direction > 0 ? 0 : found.length - 1;
    this.searched = wanted;
    selectTokens(view, found[k]);
    jump(view, found[k][0]);
    this.status.textContent = `match ${k + 1} of ${found.length}`;
  }

  // Tokens by the size of what the text is coloured by, the largest first.
  order(model) {
    const by = mode.key === "none" ? modes[0] : mode, key = `${model.label}/${views.indexOf(active)}/${by.key}`;
    if (!this.orders.has(key)) {
      const sizes = Array.from({ length: model.cells }, (_, cell) => Math.abs(by.of(model, cell) ?? -1));
      this.orders.set(key, [...sizes.keys()].filter((cell) => by.of(model, cell) !== null)
        .sort((a, b) => sizes[b] - sizes[a]).map((cell) => model.first[cell]));
    }
    return this.orders.get(key);
  }

  // One further in that order; from any other token it starts with the largest.
  step(direction) {
    const view = active, order = this.order(view.model);
    if (!order.length) { this.status.textContent = "nothing was predicted"; return; }
    const here = order[this.at] === view.pinned && this.last === mode.key;
    this.at = here ? Math.min(order.length - 1, Math.max(0, this.at + direction)) : 0;
    this.last = mode.key;
    jump(view, order[this.at]);
    this.status.textContent = `${this.at + 1} of ${order.length.toLocaleString("en")} by `
      + (mode.key === "none" ? "surprise" : mode.order);
  }
}
