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
canvas { max-width: 100%; } select { font: inherit; font-size: .9rem; max-width: 19rem; }
.wide { overflow-x: auto; } .note { border-left: 3px solid var(--accent); padding-left: .8rem; }
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
<div id="configuration" class="wide"></div>
<h2>Layers and heads</h2>
<p id="hint"></p>
<div id="maps" class="maps"></div>
<section id="head">
<h2 id="chosen">One head</h2>
<p>The line is what the mean query and the mean key of the head predict for every distance, the dots
are the mean logits that were measured; nothing was fitted. The broken line is the mean logit of
keys that the head should find, if they stood at that distance: the further it is above the other
line, the better they stand out. Choose another head in a map.</p>
<canvas id="curve" width="900" height="320"></canvas>
<p id="facts"></p>
<h3>Finding a key at a distance</h3>
<p>What should be found is the key behind an earlier occurrence of the same token. Query and key are
turned to the distance in question, so it does not matter how far apart they really were.
<em>Stands out</em>: standard deviations by which its logit is above those of other keys at the same
distance, with the spread of both. <em>Told from</em>: so many other keys at once, in 95 of 100
cases and in half of them; less than one: rather not from any. <em>Half of the
attention</em>: so many others leave it half of the attention; an estimate.</p>
<div id="retrieval" class="wide"></div>
<h3>How far it reaches</h3>
<p>Distances in tokens up to which the logit stays above a level. For keys that should be found
it is the one at which they are found in half of the cases. <em>Formula</em>: closed form.
<em>Smoothed</em>: ripples of the curve averaged away. <em>Every distance</em>: up to the first
distance below the level. <em>Proved</em>: for all distances whatever, by a bound.</p>
<div id="ranges" class="wide"></div>
</section>
<script type="application/json" id="data">)html";

constexpr const char* kTail = R"html(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const heads = data.heads, byId = id => document.getElementById(id);
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = x => x === null || x === undefined ? "none"
  : Number.isInteger(x) && Math.abs(x) < 1e10 ? String(x)
  : Math.abs(x) >= 1e5 ? x.toExponential(2) : x.toPrecision(3);

function element(parent, tag, text) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function table(parent, titles, rows) {
  const made = element(parent, "table"), top = element(made, "tr");
  for (const title of titles) element(top, "th", title);
  for (const cells of rows) {
    const row = element(made, "tr");
    for (const x of cells) element(row, "td", typeof x === "string" ? x : short(x));
  }
}

function configuration() {
  const parent = byId("configuration"), orNever = x => x === null || x < 0 ? "never" : x;
  const name = group => group.layers.length +
    (group.window ? " (window " + group.window + ")" : "");
  table(parent, ["layers", "rotation", "slowest turn", "below .75", ".5", ".25", "0", "alias",
    "slowest band's alias", "told apart at 512"], data.rotations.map(group => {
    const c = group.configuration, below = c.kernel_below;
    return [name(group), group.rotation, c.wavelengths[c.wavelengths.length - 1],
      ...["0.75", "0.5", "0.25", "0"].map(level => orNever(below[level])),
      orNever(c.kernel_alias ? c.kernel_alias.distance : null),
      orNever(c.band_alias), c.address_capacity["512"]];
  }));
  element(parent, "p", "Columns 'below': the distance from which on a key is less alike to " +
    "itself than that, counted up to " + data.length + " tokens. 'Told apart': how many other " +
    "keys of random address one can be told from at that distance.");
  table(parent, ["layers", "bands that are back together to", "slowest", "2 slowest", "3 slowest",
    "4 slowest"], data.rotations.flatMap(group => [0.1, 0.5].map(tolerance => [name(group),
    tolerance + " rad", ...group.configuration.joint_return.filter(r => r.tolerance === tolerance)
      .map(r => r.distance === null ? "none below 1e9" : r.distance)])));
  element(parent, "p", "The slow bands tell far positions apart. Where several of them are back " +
    "at their start at once, positions that far apart look alike to them.");
  element(parent, "p", "Positions held in fewer bits run out of numbers: " +
    Object.entries(data.first_indistinct_position).map(([type, at]) => `${type} from ${at} on`)
      .join(", ") + ".");
}

const log10 = (x, least = 1) => x === null || x === undefined ? null
  : Math.log10(Math.max(x, least));
// Failures of one half instead of one in twenty: ln .5 / ln .95 times as many others.
const half = Math.log(0.5) / Math.log(0.95);
// Capacities have no end where a key stands out by 40 deviations; reports say null then.
const many = x => x === null ? 1e300 : x;
const kinds = [["smoothed", "smoothed"], ["law", "formula"], ["hard", "every distance"],
  ["guaranteed", "proved"]];
// Each choice: a name and the value of a head; null where it is not known.
const maps = [
  ["Retrieval", "How far the key behind an earlier occurrence of the same token stands out among " +
    "all keys, where it really stood, in standard deviations. Dark heads look things up in the " +
    "text.", [["", h => h.induction_z]]],
  ["Capacity", "Other keys among which that key is still the largest in half of the cases " +
    "(powers of ten; below 0: less than one).",
    [...data.retrieval_distances.map((d, i) => [`if it stood at distance ${d}`,
    h => h.retrieval && log10(half * many(h.retrieval.capacity[i]), 0.01)]),
    ["where it really stood", h => log10(half * many(h.capacity), 0.01)]]],
  ["Range", "Distance in tokens (powers of ten; light: none).",
    [...kinds.map(([key, name]) => [`found among ${data.found_among.others} others: ${name}`,
      h => h.target_range && log10(h.target_range[key])]),
    ...kinds.map(([key, name]) => [`half of the mean logit is left: ${name}`,
      h => h.mean_range && log10(h.mean_range[key])])]],
  ["Alias", "Distance at which keys look most like themselves again, with the weights that the " +
    "head gives its bands (powers of ten).", [["", h => h.alias && log10(h.alias.distance)]]],
  ["Prediction", "How well the predicted curve agrees with the measured one (correlation without " +
    "the trend).", [["", h => h.detrended_r]]],
  ["Attention on the first four tokens", "Heads near 1 do nothing most of the time.",
    [["", h => h.sink_mass]]],
  ["Effective rank of keys", "Directions that the keys of the head really use.",
    [["", h => h.key_rank]]],
  ["Index", "Share of the best 64 keys that a code of 32 numbers is predicted to find.",
    [["", h => h.recall["32"]]]],
  ["Slow bands", "Share of the logit that bands of the slower half carry.",
    [["", h => h.slow_share]]],
];
const boundMap = ["Longest queries", "What the weights allow: no query of the head is longer, " +
  "whatever the text and the position.", [["in its longest band", b => b.longest_band],
  ["all bands together", b => b.rotated]]];

function heatMap(rows, [title, caption, choices]) {
  const layers = [...new Set(rows.map(h => h.layer))].sort((a, b) => a - b);
  const nHeads = Math.max(...rows.map(h => h.head)) + 1, cell = 16;
  const figure = element(byId("maps"), "figure");
  element(figure, "h3", title);
  const choice = choices.length > 1 ? element(figure, "select") : null;
  if (choice) {
    choice.setAttribute("aria-label", title);
    choices.forEach(([name], i) => { element(choice, "option", name).value = i; });
    element(figure, "br");
  }
  const canvas = element(figure, "canvas"), legend = element(figure, "figcaption");
  canvas.className = "map";
  canvas.width = 28 + nHeads * cell;
  canvas.height = layers.length * cell + 16;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", title + " by layer and head");
  const draw = () => {
    const values = rows.map(choices[choice ? choice.selectedIndex : 0][1]);
    const known = values.filter(v => v !== null && v !== undefined);
    const low = Math.min(...known), high = Math.max(...known), pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.font = "10px system-ui";
    rows.forEach((h, i) => {
      const x = 28 + h.head * cell, y = layers.indexOf(h.layer) * cell;
      if (values[i] === null || values[i] === undefined) {
        pen.strokeStyle = style("--line");
        pen.strokeRect(x + 4.5, y + 4.5, cell - 10, cell - 10);
        return;
      }
      const share = high > low ? (values[i] - low) / (high - low) : 0;
      pen.fillStyle = `hsl(210 70% ${92 - 72 * share}%)`;
      pen.fillRect(x, y, cell - 1, cell - 1);
    });
    pen.fillStyle = style("--ink");
    layers.forEach((layer, y) => { if (y % 2 === 0) pen.fillText(layer, 4, y * cell + 11); });
    for (let x = 0; x < nHeads; x += 2) pen.fillText(x, 30 + x * cell, layers.length * cell + 12);
    legend.textContent = caption + (known.length > 0
      ? ` Light: ${short(low)}, dark: ${short(high)}.` : "") + (known.length < values.length
      ? " Small frames: there is none, or it is not known." : "");
  };
  draw();
  if (choice) choice.addEventListener("change", draw);
  canvas.addEventListener("click", event => {
    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
    const head = Math.floor(((event.clientX - box.left) * scale - 28) / cell);
    const layer = layers[Math.floor((event.clientY - box.top) * scale / cell)];
    const found = heads.find(h => h.layer === layer && h.head === head);
    if (found) show(found);
  });
}

function curve(head) {
  const canvas = byId("curve"), pen = canvas.getContext("2d");
  const w = canvas.width, h = canvas.height, pad = 46;
  pen.clearRect(0, 0, w, h);
  const all = head.predicted.concat(head.measured, head.matched || []);
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
  const line = values => {
    pen.beginPath();
    data.distances.forEach((d, i) => i ? pen.lineTo(x(d), y(values[i]))
      : pen.moveTo(x(d), y(values[i])));
    pen.stroke();
  };
  line(head.predicted);
  pen.setLineDash([8, 5]);
  if (head.matched) line(head.matched);
  pen.setLineDash([]);
  pen.lineWidth = 1;
  data.distances.forEach((d, i) => {
    pen.beginPath(); pen.arc(x(d), y(head.measured[i]), 3, 0, 7); pen.fill();
  });
}

function show(head) {
  byId("chosen").textContent = `Layer ${head.layer}, head ${head.head}`;
  curve(head);
  byId("facts").textContent = `Agreement without the trend: ${short(head.detrended_r)} (noise ` +
    `allows ${short(head.ceiling_r)}). ` + (head.alias ? "Keys look most like themselves again " +
    `at ${head.alias.distance} tokens (${short(head.alias.value)}). ` : "") +
    (head.query_share > 0 ? `The longest query band reached ${short(100 * head.query_share)} % ` +
    "of what the weights allow." : "What the weights allow its queries is not known.");
  const found = head.retrieval;
  byId("retrieval").textContent = found ? "" : "No token of the text occurs again.";
  if (found) {
    table(byId("retrieval"), ["distance", "its logit", "others", "stands out", "told from",
      "in half of the cases", "half of the attention"],
      [...data.retrieval_distances.map((d, i) => [d, found.matched[i],
      found.background[i], found.z[i], found.capacity[i], half * many(found.capacity[i]),
      Math.exp(found.ln_softmax_capacity[i])]),
      ["where it stood", "", "", head.induction_z, head.capacity,
      half * many(head.capacity), ""]]);
  }
  byId("ranges").textContent = "";
  const upTo = (x, r) => x >= r.searched ? `at least ${r.searched}` : x;
  const row = (name, r) => r ? [name, r.threshold, r.law, upTo(r.smoothed, r), upTo(r.hard, r),
    r.guaranteed] : [name, "none", "", "", "", ""];
  table(byId("ranges"), ["", "level", "formula", "smoothed", "every distance", "proved"], [
    row(`such a key, among ${data.found_among.others} others`, head.target_range),
    row("half of the mean logit", head.mean_range)]);
}

byId("model").textContent = `${data.model} (${data.engine})` +
  (data.text ? `; text: ${data.text}, ${data.tokens} tokens` : "; no text was given");
for (const note of data.notes) element(byId("notes"), "p", "Note: " + note).className = "note";
configuration();
if (heads.length > 0) {
  byId("hint").textContent = data.pairs ? "Rows are layers, columns heads. " +
    `${data.pairs} tokens of the text occur earlier in it.` : "Rows are layers, columns heads.";
  for (const map of maps) heatMap(heads, map);
  show(heads.reduce((a, b) => b.induction_z > a.induction_z ? b : a));
} else {
  byId("hint").textContent = data.text ? "No head of this model could be studied; see the notes."
    : "Give a text (-f) to see what the heads do.";
  byId("head").hidden = true;
}
if (data.query_bounds.length > 0) heatMap(data.query_bounds, boundMap);
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
