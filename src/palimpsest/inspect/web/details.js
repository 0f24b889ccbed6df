// What is known about one token. The tables are made once; then only their text changes.

const MOST_ROWS = 48; // heads in one table; a model with more shows one layer at a time

function bar(share) {
  const fill = element("i");
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return element("td", { class: "bar", "aria-hidden": "true" }, fill);
}

function setBar(cell, share) {
  cell.firstChild.style.width = `${100 * Math.min(1, Math.max(0, share || 0))}%`;
}

function cardOf(title, ...children) {
  return element("section", { class: "card", "aria-label": title },
    element("h3", {}, title), ...children);
}

class Details {
  constructor(model, root, below, on, path) {
    this.model = model;
    this.on = on;
    this.head = element("p", { class: "token-head" });
    this.parts = [];
    root.append(cardOf("Token", helpOn("Surprise", "Expected", "Rank",
      ...(models.length > 1 ? ["Difference"] : []), "Predictions"), this.head, this.makePredictions()));
    root.append(path);
    if (model.retrieved.length) root.append(this.makeRetrieved());
    if (model.gates.length) root.append(this.makeGates());
    if (model.heads.length) below.append(this.makeHeads());
  }

  makePredictions() {
    const width = this.model.topIds.length / this.model.tokens;
    const rows = Array.from({ length: width }, () => {
      const name = element("td", { class: "name token-name" });
      const value = element("td", { class: "number" }), share = bar(0);
      return { node: element("tr", {}, name, share, value), name, share, value };
    });
    this.parts.push((token) => rows.forEach((row, k) => {
      const at = token * width + k, probability = this.model.topProbabilities[at];
      const known = this.model.rank[token] > 0;
      const came = known && this.model.topIds[at] === this.model.ids[token];
      row.name.textContent = known ? this.model.labels[this.model.topIds[at]] + (came ? " ✓" : "") : "–";
      row.value.textContent = known ? number(probability) : "–";
      setBar(row.share, known ? probability : 0);
    }));
    return element("table", { class: "predictions" },
      element("caption", {}, "Most likely at this position, before it was read"),
      element("tbody", {}, ...rows.map((row) => row.node)));
  }

  makeGates() {
    const rows = this.model.gates.map((gate) => {
      const value = element("td", { class: "number" }), share = bar(0);
      return { gate, value, share, node: element("tr", {},
        element("td", { class: "name", title: gate.doc }, gate.name), share, value) };
    });
    this.parts.push((token) => {
      for (const row of rows) {
        row.value.textContent = number(row.gate.values[token]);
        setBar(row.share, row.gate.values[token]);
      }
    });
    return cardOf("Gates", gateHelp(this.model), element("div", { class: "scroll" }, element("table", {},
      element("caption", {}, "Mean over the entries of each, at this token"),
      element("tbody", {}, ...rows.map((row) => row.node)))));
  }

  // A row for each head, a column for each quantity.
  makeHeads() {
    const m = this.model, layers = [...new Set(m.heads.map((part) => part.layer))];
    const titles = [...new Set(m.heads.map((part) => part.title))];
    const retained = new Set(
      m.heads.filter((part) => part.kind === "retention").map((part) => part.title));
    const rows = [];
    for (const layer of layers) {
      const here = m.heads.filter((part) => part.layer === layer);
      for (let h = 0; h < Math.max(...here.map((part) => part.width)); h++) {
        const cells = [], node = element("tr", {},
          element("td", {}, layer === "" ? `${h}` : `${layer}.${h}`));
        for (const title of titles) {
          const part = here.find((p) => p.title === title && h < p.width);
          const cell = element("td", { class: "number" });
          node.append(cell);
          cells.push({ part, cell, h });
          if (retained.has(title)) {
            const half = element("td", { class: "number" });
            node.append(half);
            cells.push({ part, cell: half, h, half: true });
          }
        }
        rows.push({ layer, node, cells });
      }
    }
    const columns = titles.flatMap((title) => (retained.has(title) ? [title, "1/e after"] : [title]));
    const body = element("tbody");
    let shown = rows;
    const choose = (layer) => {
      shown = layer === null ? rows : rows.filter((row) => row.layer === layer);
      body.replaceChildren(...shown.map((row) => row.node));
    };
    const card = cardOf("Heads", helpOn(...columns));
    if (rows.length > MOST_ROWS) {
      const pick = element("select", {},
        ...layers.map((layer) => element("option", { value: layer }, `layer ${layer}`)));
      pick.addEventListener("change", () => { choose(pick.value); this.show(this.token); });
      card.append(element("label", {}, "Show ", pick));
      choose(layers[0]);
    } else choose(null);
    this.parts.push((token) => {
      for (const row of shown) for (const { part, cell, h, half } of row.cells) {
        if (!part) { cell.textContent = "–"; continue; }
        const value = part.values[token * part.width + h];
        if (part.kind !== "retention") cell.textContent = number(value);
        else cell.textContent = half ? number(-1 / value) : retention(value);
      }
    });
    const header = columns.map((name) => element("th",
      { class: "number", scope: "col", title: HELP[name] ?? null }, name));
    card.append(element("div", { class: "scroll", tabindex: "0", role: "region",
      "aria-label": "heads at this token" },
      element("table", { class: "heads" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "head"), ...header)),
        body)));
    return card;
  }

  makeRetrieved() {
    const lists = this.model.retrieved.map((part) => {
      const list = element("div", { class: "places" });
      return { part, list, node: element("div", {},
        element("p", { class: "note" }, part.layer === "" ? "" : `Layer ${part.layer}`), list) };
    });
    this.parts.push((token) => {
      for (const { part, list } of lists) {
        const made = [];
        for (let k = 0; k < part.width; k++) {
          const at = token * part.width + k, place = part.positions[at], weight = part.weights[at];
          if (!(weight > 0)) continue;
          if (place < 0) { made.push(element("span", { class: "note" }, `⟨begin⟩ ${number(weight, 2)}`)); continue; }
          const button = element("button", { type: "button" },
            element("span", { class: "token-name" }, this.model.name(place)),
            ` −${token - place}: ${number(weight, 2)}`);
          button.addEventListener("click", () => this.on.go(place));
          made.push(button);
        }
        list.replaceChildren(...(made.length ? made : [element("span", { class: "note" }, "none yet")]));
      }
    });
    return cardOf("Retrieved positions", helpOn("Retrieved positions"), ...lists.map(({ node }) => node));
  }

  found(token) {
    if (token === null) return [];
    return this.model.retrieved.flatMap((part) => {
      const low = token * part.width;
      return [...part.positions.subarray(low, low + part.width)].filter(
        (place, k) => place >= 0 && part.weights[low + k] > 0);
    });
  }

  show(token) {
    this.token = token;
    const m = this.model, cell = m.cellOf[token], size = m.after(cell) - m.first[cell];
    const share = size > 1 ? `, ${token - m.first[cell] + 1} of ${size} of “${m.shown(cell)}”` : "";
    this.head.replaceChildren(element("b", { class: "token-name" }, m.name(token)),
      ` token ${(token + 1).toLocaleString("en")} of ${m.tokens.toLocaleString("en")}${share}. `,
      this.difference(token), ` ${this.summary(token)}`);
    for (const part of this.parts) part(token);
  }

  // Bits compared with the other model, over the bytes of this token; "" without one.
  difference(token) {
    const m = this.model, other = models[1 - models.indexOf(m)];
    const low = m.bytes[token], high = m.byteEnd(token);
    if (models.length < 2 || high <= low || !m.rank[token]) return "";
    const bits = m.surprise[token] - other.bitsBetween(low, high);
    if (Number.isNaN(bits)) return "";
    const sign = bits < 0 ? "−" : "+";
    return element("span", { class: "difference", title: HELP.Difference },
      `${sign}${Math.abs(bits).toFixed(2)} bits vs ${other.label}`);
  }

  summary(token) {
    const m = this.model;
    if (!m.rank[token]) return "Not predicted: it is the first token.";
    return `Surprise ${number(m.surprise[token])} bits (expected ${number(m.entropy[token])}), `
      + `probability ${number(2 ** -m.surprise[token])}, rank ${m.rank[token].toLocaleString("en")}.`;
  }
}

function gateHelp(model) {
  const help = helpOn("Gates");
  help.lastChild.append(...model.gates.flatMap((gate) => [
    element("dt", {}, gate.name), element("dd", {}, gate.doc)]));
  return help;
}

// A share near 1 is written as 1 minus the rest.
function retention(log) {
  const share = Math.exp(log);
  return share > 0.9995 ? `1 − ${number(-Math.expm1(log), 2)}` : number(share);
}

function halfLives(model) {
  const parts = model.heads.filter((part) => part.kind === "retention");
  const most = Math.log10(1 + Math.max(1, ...parts.map((part) => part.longestLag)));
  const titles = new Set(parts.map((part) => part.title));
  const rows = parts.flatMap((part) => part.halfLives.map((value, h) => {
    const share = value === null ? 1 : Math.log10(1 + value) / most;
    const place = part.layer === "" ? `${h}` : `${part.layer}.${h}`;
    return element("tr", {},
      element("td", { class: "name" }, titles.size > 1 ? `${place} ${part.title}` : place), bar(share),
      element("td", { class: "number" }, value === null ? `> ${number(part.longestLag)}` : number(value)));
  }));
  return cardOf("Half-lives of the heads", helpOn("Half-lives of the heads"), element("div", { class: "scroll", tabindex: "0",
    role: "region", "aria-label": "half-lives" }, element("table", { class: "lives-table" },
    element("caption", {}, "Tokens after which 1/e is left, over the whole text; bars are logarithmic"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "head"),
      element("td", {}), element("th", { scope: "col", class: "number" }, "tokens"))),
    element("tbody", {}, ...rows))));
}
