// Short explanations of the quantities, shown where they appear.

const HELP = {
  Surprise: "-log2 of the probability that the model gave the token before it was read, in bits. "
    + "A character made of several tokens has their sum.",
  Expected: "The entropy of the prediction: the surprise that the model itself expects, in bits.",
  Rank: "1 if the token was the most likely one, 2 if one other token was more likely, and so on.",
  Difference: "The surprise of the token minus the other model's surprise for the same bytes, in "
    + "bits. Negative: this model predicted the token better.",
  Predictions: "The most likely tokens at this position, before it was read. ✓ marks the token "
    + "that followed.",
  Trajectory: "The state after each token, projected onto its two directions of largest variance. "
    + "Darker points in the light theme, brighter ones in the dark theme, are more surprising.",
  "Retrieved positions": "Earlier positions that the layer looked up at this step, with their "
    + "weights. They are marked in the text. Click one to go there.",
  Gates: "The mean over the entries of each gate, at the step that read the token.",
  "write β": "The strength of the write at this step: 0 leaves the memory unchanged, 1 replaces "
    + "what it holds for the key.",
  "step Δ": "The step size of the head: a larger step writes more and forgets more.",
  retention: "The share of itself that the memory keeps over this step. 1 keeps everything.",
  "state λ": "The share of itself that the running state keeps over this step.",
  "pairs γ": "The share of itself that the pair memory keeps over this step.",
  "1/e after": "The number of tokens after which 1/e (37 %) would be left if every step had this "
    + "retention.",
  "Half-lives of the heads": "The number of tokens after which, on average over the text, 1/e "
    + "(37 %) of what a memory held is left.",
  "Over time": "One row per gate or head, from the first token (left) to the last (right). A "
    + "stronger colour is a larger value; the scale is given above the rows. Each cell is the mean "
    + "over its tokens. Select a passage of the text to see only that passage. Click to go to a token.",
  Memory: "The matrix of each head after the token's write, heads side by side. Rows belong to the "
    + "entries of the key, columns to those of the value. Blue is negative, orange positive; the "
    + "strongest colour is the largest magnitude of that head at any recorded position (the ± below "
    + "each picture). In a model with several memories per head, 1.2 is memory 1 of head 2.",
};

// A "?" that opens the definitions of the given names.
function helpOn(...names) {
  const known = [...new Set(names)].filter((name) => HELP[name]);
  return element("details", { class: "help" },
    element("summary", { "aria-label": `Explain ${names[0]}`, title: HELP[known[0]] }, "?"),
    element("dl", {}, ...known.flatMap((name) => [
      element("dt", {}, name), element("dd", {}, HELP[name])])));
}
