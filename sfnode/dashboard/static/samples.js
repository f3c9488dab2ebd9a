// Samples: how the base model and later ones answer the same test rows, and a slider over the epochs.

import { ask } from "./api.js";
import { byId, make, tell } from "./dom.js";
import { count } from "./format.js";

let samples = { rows: [], moments: [] };

export async function showSamples() {
  const slider = byId("samples-when"), atEnd = Number(slider.value) >= samples.moments.length - 1;
  const epoch = samples.moments[Number(slider.value)]?.epoch;
  samples = await ask("samples");
  slider.max = Math.max(0, samples.moments.length - 1);
  const same = samples.moments.findIndex((moment) => moment.epoch === epoch);
  slider.value = atEnd || same < 0 ? slider.max : same;
  redraw();
}

function redraw() {
  const { rows, moments } = samples, moment = moments[Number(byId("samples-when").value)];
  byId("samples-box").hidden = !rows.length;
  byId("samples-time").hidden = !moments.length;
  byId("samples-when").hidden = moments.length < 2;
  if (!rows.length) return;
  showExample(rows, moments.at(-1));
  byId("samples").replaceChildren(...rows.map((row, place) => line(row, moment, place)));
  const right = (scores) => scores.filter((score) => score === 1).length;
  if (!moment) return;
  const words = `After round ${moment.epoch ?? "–"}, ${count(moment.known)} updates: ${right(moment.scores)} of ${rows.length} right, ${right(rows.map((row) => row.base_score))} before training.`;
  tell("samples-text", words);
  byId("samples-when").setAttribute("aria-valuetext", words);
  tell("samples-note", `The same ${rows.length} test rows after every round, which nobody trains on.`);
}

/** A row that is answered better now than before, for the top of the page. */
function showExample(rows, moment) {
  const place = moment ? rows.findIndex((row, at) => moment.scores[at] > row.base_score) : -1, row = rows[place];
  if (!row) return byId("example").replaceChildren();
  const before = make("s", row.base || "(nothing)"), now = make("b", moment.answers[place] || "(nothing)", "good");
  byId("example").replaceChildren(make("bdi", `“${row.text}”`, "quiet"), " ", before, " → ", now);
}

function line(row, moment, place) {
  const one = document.createElement("tr");
  one.append(cell(row.text, "row-text"), cell(row.right), answer(row.base, row.base_score), moment ? answer(moment.answers[place], moment.scores[place]) : cell("–"));
  ["Right answer", "Before training", "Now"].forEach((name, place) => { one.children[place + 1].dataset.name = name; });
  return one;
}

function answer(said, score) {
  const good = score === 1, place = cell("", good ? "good" : "");
  place.append(make("span", good ? "✓ " : ""), make("bdi", said || "(nothing)"));
  if (score > 0 && !good) place.append(make("span", ` reward ${score.toFixed(2)}`, "quiet"));
  return place;
}

function cell(text, className = "") {
  const place = make("td", text, className);
  place.dir = "auto";
  return place;
}

export function listenSamples() {
  byId("samples-when").addEventListener("input", redraw);
}
