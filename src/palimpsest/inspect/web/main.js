// One view for each model, linked by the bytes of the text.

const raw = JSON.parse(document.getElementById("data").textContent);
const models = raw.models.map((part) => new Model(part));
const modes = colourModes(models);
const main = document.getElementById("models");
const clear = document.getElementById("clear");
let mode = modes[0];
let range = null; // of bytes
const views = [];
let active; // the view in which search and order move

class View {
  constructor(model, index) {
    this.model = model;
    this.index = index;
    this.pinned = 0;
    this.hovered = null;
    this.waiting = false;
    const root = element("section", { class: "model", "aria-label": model.label });
    const facts = element("dl", { class: "facts" }, ...model.facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    const text = element("div", { class: "text", role: "listbox", "aria-label": `text read by ${model.label}`,
      "aria-multiselectable": "true" });
    const map = element("canvas", { class: "minimap", role: "slider", tabindex: "0",
      "aria-label": "surprise along the text", "aria-valuemin": "1" });
    const plot = element("div", { class: "plot" });
    const look = element("div", { class: "look" });
    this.line = element("div", { class: "now-line" });
    this.rangeLine = element("div", { class: "range-line", "aria-live": "polite" });
    const shares = model.shares.map((share) => `${Math.round(100 * share)} %`);
    const path = cardOf(`Trajectory of ${model.trajectory}`, helpOn("Trajectory"), plot,
      element("p", { class: "note" }, `Horizontal: ${shares[0]} of the variance; vertical: ${shares[1]}. `
        + "Ring: this token, with the 12 steps before it. Selection: from circle to square."));
    const lives = element("div", { class: "lives" });
    root.append(
      element("div", { class: "head" }, element("h2", {}, model.label), facts,
        element("p", { class: "note missing" }, this.lacking())),
      element("div", { class: "reading" }, map, text, element("div", { class: "now-line" },
        this.line, this.rangeLine)),
      look, lives);
    this.line.className = "";
    main.append(root);
    const on = {
      hover: (token) => hover(this, token),
      focus: (token) => pin(this, token),
      range: (tokens) => selectTokens(this, tokens),
      go: (token) => go(this, token),
      step: (by) => go(this, Math.min(model.tokens - 1, Math.max(0, this.pinned + by))),
      scroll: () => this.scrolled(),
    };
    this.details = new Details(model, look, lives, on, path);
    this.time = null;
    if (model.heads.length || model.gates.length) {
      const card = cardOf("Over time", helpOn("Over time", ...model.heads.map((part) => part.title), "Gates"));
      lives.prepend(card);
      this.time = new OverTime(model, card, on);
    }
    this.memory = null;
    if (model.memories.length) {
      const card = cardOf("Memory", helpOn("Memory"));
      lives.append(card);
      this.memory = new MemoryPanel(model, card);
    }
    if (model.heads.some((part) => part.kind === "retention")) lives.append(halfLives(model));
    this.map = new Minimap(model, map, on);
    this.trajectory = new Trajectory(model, plot, on);
    this.text = new TextPane(model, text, mode, on);
    this.show();
    this.scrolled();
  }

  // In a comparison one line: what only the other model has.
  lacking() {
    const other = models[1 - this.index];
    if (models.length < 2) return this.model.missing.join(" ");
    const has = panelsOf(this.model);
    const lacks = panelsOf(other).filter((name) => !has.includes(name));
    return lacks.length ? `Not in this model: ${lacks.join(", ")}.` : "";
  }

  get token() { return this.hovered ?? this.pinned; }

  // Before the next frame, however many events there were.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.show();
    });
  }

  show() {
    const token = this.token, found = this.details.found(token);
    this.details.show(token);
    this.text.show(token, found);
    this.trajectory.show(token, found);
    this.map.show(token);
    this.time?.show(token);
    this.memory?.show(token);
    const name = element("b", {}, this.model.name(token));
    this.line.replaceChildren(name, " ", this.details.difference(token), ` ${this.details.summary(token)}`);
  }

  scrolled() {
    const first = this.text.firstVisible();
    if (first === null) return;
    const root = this.text.root, share = root.clientHeight / Math.max(1, root.scrollHeight);
    this.map.visible = [first, first + share * this.model.tokens];
    this.map.sheet.soon();
  }

  select() {
    const m = this.model;
    const tokens = range && [m.tokenAtByte(range[0]), m.tokenAtByte(range[1] - 1)];
    this.text.select(tokens);
    this.trajectory.select(tokens);
    this.time?.select(tokens);
    this.map.range = tokens;
    this.map.sheet.soon();
    if (!tokens) { this.rangeLine.textContent = ""; return; }
    let bits = 0, counted = 0, bytes = 0;
    for (let i = tokens[0]; i <= tokens[1]; i++) {
      if (!m.rank[i]) continue;  // a first token that nothing predicts counts as nothing
      bits += m.surprise[i];
      bytes += m.byteEnd(i) - m.bytes[i];
      counted++;
    }
    this.rangeLine.textContent = `Selected: tokens ${tokens[0] + 1} to ${tokens[1] + 1}, `
      + (bytes ? `${number(bits / counted)} bits per token, ${number(bits / bytes)} per byte.`
        : "of which nothing was predicted.");
  }
}

// The same place in every view.
function everywhere(view, token, act) {
  for (const other of views) {
    const same = token === null || other === view
      ? token : other.model.tokenAtByte(view.model.bytes[token]);
    act(other, same);
  }
}

function hover(view, token) {
  everywhere(view, token, (other, same) => { other.hovered = same; other.soon(); });
}

function pin(view, token) {
  active = view;
  everywhere(view, token, (other, same) => {
    other.pinned = same;
    other.hovered = null;
    if (other !== view) other.text.reveal(same);
    other.soon();
  });
}

function go(view, token) {
  pin(view, token);
  view.text.reveal(token);
  view.scrolled();
}

// The same, with the focus if the text has it.
function jump(view, token) {
  if (view.text.root.contains(document.activeElement)) view.text.focus(token);
  else go(view, token);
  view.scrolled();
}

// What a model has panels for.
function panelsOf(model) {
  const has = (kind) => model.heads.some((part) => part.kind === kind);
  return [["gates", model.gates.length], ["write strength", has("write")],
    ["retention and half-lives", has("retention")], ["retrieved positions", model.retrieved.length],
    ["a memory matrix", model.memories.length]].filter(([, there]) => there).map(([name]) => name);
}

function selectTokens(view, tokens) {
  const m = view.model;
  range = tokens && [m.bytes[tokens[0]], m.byteEnd(tokens[1])];
  for (const other of views) other.select();
  clear.disabled = !range;
}

function unselect() {
  document.getSelection().removeAllRanges();
  selectTokens(views[0], null);
}

function setMode(key) {
  mode = modes.find((m) => m.key === key);
  showLegend(document.getElementById("legend"), mode);
  for (const view of views) view.text.recolour(mode);
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = dark ? "Use light theme" : "Use dark theme";
  for (const view of views) {
    view.trajectory.below.soon();
    view.map.sheet.soon();
    view.time?.resize();
    view.memory?.draw();
  }
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches);
let themeChosen = false;
dark.addEventListener("change", () => { if (!themeChosen) setTheme(dark.matches); });
document.getElementById("theme").addEventListener("click", () => {
  themeChosen = true;
  setTheme(document.documentElement.dataset.theme !== "dark");
});
const colour = document.getElementById("colour");
colour.append(...modes.map((m) => element("option", { value: m.key }, m.title)));
colour.addEventListener("change", () => setMode(colour.value));
clear.addEventListener("click", unselect);
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && range) unselect(); });

if (models.length > 1) main.classList.add("two");
models.forEach((model, index) => views.push(new View(model, index)));
active = views[0];
setMode("surprise");
const finder = new Finder(document.getElementById("search"), document.getElementById("status"));
document.getElementById("next").addEventListener("click", () => finder.step(1));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select")) return;
  if (event.key === "n") finder.step(1);
  else if (event.key === "p") finder.step(-1);
  else if (event.key === "/") { event.preventDefault(); finder.field.focus(); }
});
document.documentElement.dataset.ready = "yes";
