// Numbers out of the page: base64, little-endian.

const KINDS = { float32: Float32Array, int32: Int32Array, int8: Int8Array, uint16: Uint16Array };

function decode(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (packed.dtype === "float16") return fromHalves(new Uint16Array(bytes.buffer));
  return new KINDS[packed.dtype](bytes.buffer);
}

function fromHalves(bits) {
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const b = bits[i], sign = b & 0x8000 ? -1 : 1, exponent = (b >> 10) & 31, rest = b & 1023;
    if (exponent === 0) out[i] = sign * rest * 2 ** -24;
    else if (exponent === 31) out[i] = rest ? NaN : sign * Infinity;
    else out[i] = sign * (1 + rest / 1024) * 2 ** (exponent - 15);
  }
  return out;
}

// The last index whose entry is at most the value, in an ascending array; -1 before the first.
function lastAtMost(array, value) {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// What was found in one model. A cell is what is shown of one token, or of several that make one
// character together.
class Model {
  constructor(raw) {
    Object.assign(this, raw);
    for (const name in raw.arrays) this[name] = decode(raw.arrays[name]);
    for (const part of [...raw.gates, ...raw.heads]) part.values = decode(part.values);
    for (const part of raw.memories) {
      part.positions = decode(part.positions);
      part.values = decode(part.values);
    }
    for (const part of raw.retrieved) {
      part.positions = decode(part.positions);
      part.weights = decode(part.weights);
    }
    this.tokens = this.ids.length;
    this.cells = this.ends.length;
    this.cellOf = new Int32Array(this.tokens);
    for (let c = 0; c < this.cells; c++) this.cellOf.fill(c, this.first[c], this.after(c));
  }

  after(cell) { return cell + 1 < this.cells ? this.first[cell + 1] : this.tokens; }
  startOf(cell) { return cell ? this.ends[cell - 1] : 0; }
  shown(cell) { return this.text.slice(this.startOf(cell), this.ends[cell]); }
  name(token) { return this.labels[this.ids[token]]; }

  // The sum over the tokens of a cell; null where nothing was predicted.
  sum(values, cell) {
    let total = 0;
    for (let i = this.first[cell]; i < this.after(cell); i++) total += values[i];
    return Number.isNaN(total) ? null : total;
  }

  // Bits between two bytes of the text, each token's evenly over its bytes.
  bitsBetween(low, high) {
    let total = 0;
    for (let i = Math.max(0, lastAtMost(this.bytes, low)); i < this.tokens; i++) {
      const start = this.bytes[i], end = this.byteEnd(i);
      if (start >= high) break;
      const share = (Math.min(end, high) - Math.max(start, low)) / Math.max(1, end - start);
      if (share > 0) total += share * this.surprise[i];
    }
    return total;
  }

  byteEnd(token) { return token + 1 < this.tokens ? this.bytes[token + 1] : this.byteLength; }
  tokenAtByte(byte) { return Math.max(0, lastAtMost(this.bytes, byte)); }
}
