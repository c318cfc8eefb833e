// The report goes into the page as JSON, and a script draws it; without one a sentence says where
// the numbers are. Colours come from one scale of lightness, so that they print and can be told
// apart by everyone.
#include "analyze_page.hpp"

namespace volvelle::cli {

namespace {

constexpr const char* kHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What this model can retrieve</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fcfcfa; --line: #c9c9c4;
  --accent: #0b61a4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e2; --paper: #17181a; --line: #4a4b4e; --accent: #79b8f0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .7rem; text-align: right;
  border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
canvas { max-width: 100%; } .note { border-left: 3px solid var(--accent); padding-left: .8rem; }
.maps { display: flex; flex-wrap: wrap; gap: 1.4rem; } figure { margin: 0; }
figcaption { max-width: 19rem; font-size: .9rem; }
.map { cursor: pointer; outline: 1px solid var(--line); }
#curve { outline: 1px solid var(--line); } code { font-size: .9em; }
</style></head><body>
<h1>What this model can retrieve</h1>
<noscript>This page draws its figures with a script. The same numbers come from
<code>volvelle analyze --json</code>.</noscript>
<p id="model"></p><div id="notes"></div>
<h2>What positions alone say</h2>
<p>A model with rotary positions turns every key by an angle that grows with its position. How
alike a key is to itself after some tokens (1: the same, 0: no more than chance) depends on
nothing but the configuration. An <em>alias</em> is a distance at which it looks most like itself
again.</p>
<div id="configuration"></div>
<h2>Layers and heads on the given text</h2>
<div id="maps" class="maps"></div>
<h2 id="chosen">One head</h2>
<p>The line is what the mean query and the mean key of the head predict for every distance, the dots
are the mean logits that were measured; nothing was fitted. Choose another head in a map.</p>
<canvas id="curve" width="900" height="320"></canvas>
<p id="facts"></p>
<script type="application/json" id="data">)html";

constexpr const char* kTail = R"html(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const heads = data.heads, byId = id => document.getElementById(id);
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = x => x === null || x === undefined ? "none" : Math.abs(x) >= 1e5 ? x.toExponential(2)
  : Number.isInteger(x) ? String(x) : x.toPrecision(3);

function element(parent, tag, text) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function configuration() {
  const table = element(byId("configuration"), "table"), top = element(table, "tr");
  for (const title of ["layers", "rotation", "slowest turn", "below .75", ".5", ".25", "0",
    "alias", "told apart at 512"]) element(top, "th", title);
  for (const group of data.rotations) {
    const row = element(table, "tr"), c = group.configuration, below = c.kernel_below;
    const layers = group.layers.length + (group.window ? " (window " + group.window + ")" : "");
    const cells = [layers, group.rotation, c.wavelengths[c.wavelengths.length - 1], below["0.75"],
      below["0.5"], below["0.25"], below["0"], c.kernel_alias.distance, c.address_capacity["512"]];
    cells.forEach(x => element(row, "td", typeof x === "string" ? x : x < 0 ? "never" : short(x)));
  }
  element(byId("configuration"), "p", "Columns 'below': the distance from which on a key is less " +
    "alike to itself than that, counted up to " + data.length + " tokens. 'Told apart': how many " +
    "other keys of random address one can be told from at that distance.");
}

const maps = [
  ["induction_z", "Retrieval", "How far the key behind an earlier occurrence of the same token " +
    "stands out, in standard deviations. Dark heads look things up in the text."],
  ["capacity_log", "Capacity", "Others among which that key is still the largest in 95 of 100 " +
    "cases (powers of ten)."],
  ["range_log", "Range", "Distance at which half of the head's mean logit is gone (powers of " +
    "ten)."],
  ["detrended_r", "Prediction", "How well the predicted curve agrees with the measured one " +
    "(correlation without the trend)."],
  ["sink_mass", "Attention on the first four tokens", "Heads near 1 do nothing most of the time."],
  ["key_rank", "Effective rank of keys", "Directions that the keys of the head really use."],
  ["recall_32", "Index", "Share of the best 64 keys that a code of 32 numbers is predicted to " +
    "find."],
  ["slow_share", "Slow bands", "Share of the logit that bands of the slower half carry."],
];
const value = (head, key) => key === "capacity_log" ? Math.log10(Math.max(head.capacity, 1))
  : key === "range_log" ? Math.log10(Math.max(head.range, 1))
  : key === "recall_32" ? head.recall["32"] : head[key];

function heatMap([key, title, caption]) {
  const layers = [...new Set(heads.map(h => h.layer))].sort((a, b) => a - b);
  const nHeads = Math.max(...heads.map(h => h.head)) + 1, cell = 16;
  const figure = element(byId("maps"), "figure");
  element(figure, "h3", title);
  const canvas = element(figure, "canvas");
  canvas.className = "map";
  canvas.width = 28 + nHeads * cell;
  canvas.height = layers.length * cell + 16;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", title + " by layer and head");
  const values = heads.map(h => value(h, key));
  const low = Math.min(...values), high = Math.max(...values), pen = canvas.getContext("2d");
  pen.font = "10px system-ui";
  heads.forEach((h, i) => {
    const share = high > low ? (values[i] - low) / (high - low) : 0;
    pen.fillStyle = `hsl(210 70% ${92 - 72 * share}%)`;
    pen.fillRect(28 + h.head * cell, layers.indexOf(h.layer) * cell, cell - 1, cell - 1);
  });
  pen.fillStyle = style("--ink");
  layers.forEach((layer, y) => { if (y % 2 === 0) pen.fillText(layer, 4, y * cell + 11); });
  for (let x = 0; x < nHeads; x += 2) pen.fillText(x, 30 + x * cell, layers.length * cell + 12);
  canvas.addEventListener("click", event => {
    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
    const head = Math.floor(((event.clientX - box.left) * scale - 28) / cell);
    const layer = layers[Math.floor((event.clientY - box.top) * scale / cell)];
    const found = heads.find(h => h.layer === layer && h.head === head);
    if (found) show(found);
  });
  element(figure, "figcaption", `${caption} Light: ${short(low)}, dark: ${short(high)}.`);
}

function show(head) {
  byId("chosen").textContent = `Layer ${head.layer}, head ${head.head}`;
  const canvas = byId("curve"), pen = canvas.getContext("2d");
  const w = canvas.width, h = canvas.height, pad = 46;
  pen.clearRect(0, 0, w, h);
  const all = head.predicted.concat(head.measured);
  let low = Math.min(...all), high = Math.max(...all);
  if (!(high > low)) { low -= 1; high += 1; }
  const last = Math.log(data.distances[data.distances.length - 1]);
  const x = d => pad + (w - 2 * pad) * Math.log(d) / last;
  const y = v => h - pad - (h - 2 * pad) * (v - low) / (high - low);
  pen.strokeStyle = style("--line");
  pen.fillStyle = style("--ink");
  pen.font = "12px system-ui";
  for (let d = 1; d <= data.distances[data.distances.length - 1]; d *= 4) {
    pen.beginPath(); pen.moveTo(x(d), pad / 2); pen.lineTo(x(d), h - pad); pen.stroke();
    pen.fillText(d, x(d) - 6, h - pad + 16);
  }
  pen.fillText("distance in tokens", w / 2 - 50, h - 8);
  pen.fillText(short(high), 4, y(high) + 4);
  pen.fillText(short(low), 4, y(low) + 4);
  pen.strokeStyle = style("--accent");
  pen.lineWidth = 2;
  pen.beginPath();
  data.distances.forEach((d, i) => i ? pen.lineTo(x(d), y(head.predicted[i]))
    : pen.moveTo(x(d), y(head.predicted[i])));
  pen.stroke();
  pen.lineWidth = 1;
  data.distances.forEach((d, i) => {
    pen.beginPath(); pen.arc(x(d), y(head.measured[i]), 3, 0, 7); pen.fill();
  });
  byId("facts").textContent = `Agreement without the trend: ${short(head.detrended_r)} (noise ` +
    `allows ${short(head.ceiling_r)}). Range ${short(head.range)} tokens, retrieval ` +
    `${short(head.induction_z)} standard deviations, capacity ${short(head.capacity)}. ` +
    (head.query_share > 0 ? `The longest query band reached ${short(100 * head.query_share)} % ` +
    "of what the weights allow." : "What the weights allow its queries is not known.");
}

byId("model").textContent = `${data.model} (${data.engine})` +
  (data.text ? `; text: ${data.text}, ${data.tokens} tokens` : "; no text was given");
for (const note of data.notes) element(byId("notes"), "p", "Note: " + note).className = "note";
configuration();
if (heads.length > 0) {
  maps.forEach(heatMap);
  show(heads.reduce((a, b) => b.induction_z > a.induction_z ? b : a));
} else {
  byId("maps").textContent = data.text ? "No head of this model could be studied; see the notes."
    : "Give a text (-f) to see what the heads do.";
  for (const id of ["chosen", "curve"]) byId(id).hidden = true;
}
document.documentElement.dataset.drawn = String(heads.length);
</script></body></html>
)html";

// Names may hold anything, "</script>" too.
std::string embedded(const Json& json) {
  std::string text;
  for (const char c : to_line(json)) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string analysis_page(const Json& analysis) { return kHead + embedded(analysis) + kTail; }

}  // namespace volvelle::cli
