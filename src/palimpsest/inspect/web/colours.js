// Which colour a number has. The classes are in the style sheet, so that a theme needs no script.

const BITS = [0.5, 1, 2, 3, 4, 6, 8, 10, 12];
const SIZES = [0.25, 1, 2, 4]; // of a difference, in either direction

function binOf(edges, value) {
  let bin = 0;
  while (bin < edges.length && value >= edges[bin]) bin++;
  return bin;
}

function colourModes(models) {
  const bits = { names: binNames(BITS), bin: (value) => binOf(BITS, value), letter: "b" };
  const modes = [
    { ...bits, key: "surprise", title: "by surprise", order: "surprise",
      legend: "surprise in bits:", of: (m, cell) => m.sum(m.surprise, cell) },
    { ...bits, key: "entropy", title: "by expected surprise", order: "expected surprise",
      legend: "entropy of the prediction in bits:", of: (m, cell) => m.sum(m.entropy, cell) },
  ];
  if (models.length === 2) {
    modes.push({
      key: "difference", title: "by difference", order: "difference", names: differenceNames(), letter: "d",
      bin: (v) => SIZES.length + Math.sign(v) * binOf(SIZES, Math.abs(v)),
      legend: "bits, compared with the other model:",
      of: (m, cell) => {
        const low = m.bytes[m.first[cell]], high = m.byteEnd(m.after(cell) - 1);
        const other = models[m === models[0] ? 1 : 0];
        const bits = m.sum(m.surprise, cell) - other.bitsBetween(low, high);
        return Number.isNaN(bits) ? null : bits;
      },
    });
  }
  modes.push({ key: "none", title: "not at all", order: "surprise", names: [], letter: "n", legend: "", of: () => null });
  return modes;
}

function colourClass(mode, model, cell) {
  const value = mode.of(model, cell);
  return value === null ? "" : `${mode.letter}${mode.bin(value)}`;
}

function binNames(edges) {
  return [`< ${edges[0]}`, ...edges.map((low, i) => (
    i + 1 < edges.length ? `${low} – ${edges[i + 1]}` : `≥ ${low}`))];
}

// The same on both sides of nothing.
function differenceNames() {
  const names = binNames(SIZES).slice(1);
  return [...names.map((name) => `${name} less`).reverse(), `< ${SIZES[0]}`,
    ...names.map((name) => `${name} more`)];
}

function showLegend(root, mode) {
  root.textContent = "";
  if (!mode.names.length) return;
  root.append(element("span", { class: "name" }, mode.legend));
  mode.names.forEach((name, bin) => {
    root.append(element("span", { class: `${mode.letter}${bin}` }, name));
  });
}

function styleColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Colours between two of the style sheet, "#rrggbb" each.
function ramp(from, to, count) {
  const parts = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const a = parts(styleColour(from)), b = parts(styleColour(to));
  return Array.from({ length: count }, (_, i) => {
    const share = i / (count - 1);
    return `rgb(${a.map((v, k) => Math.round(v + (b[k] - v) * share)).join(" ")})`;
  });
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function number(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}
