// Whether the model gets better: the sentence, three figures, the curve over the base model's line.

import { ask } from "./api.js";
import { measurements, wide } from "./chart.js";
import { byId, say, tell } from "./dom.js";
import { offer } from "./downloads.js";
import { count } from "./format.js";

const LOWER = ["perplexity"]; // metrics that need a logarithmic axis where they fall far
let seen = null;

export async function showQuality() {
  seen = (await ask("quality")).quality;
  redraw();
}

export function redraw() {
  if (!seen) return;
  say("headline", seen.headline);
  const before = seen.compared.find((one) => one.name === "before training");
  tell("beside", seen.beside);
  figure("before", before, "");
  figure("now", seen.now, where(seen.now));
  figure("best", seen.best, where(seen.best));
  byId("measure-row").hidden = seen.across === "round";
  if (seen.now) tell("quality-legend", `${seen.name} ${seen.across === "round" ? "of rounds that count" : "as measured by this node"}, with 95 % intervals, on ${count(seen.now.count)} rows`);
  const log = LOWER.includes(seen.metric) && wide(seen.points.map((one) => one.value));
  const drawn = measurements(byId("quality-chart"), seen.points, { compared: seen.compared, nameOfX: seen.across, log, words: digits, percent: seen.is_share });
  offer(byId("quality-chart"), drawn.table);
}

const where = (point) => (point ? (seen.across === "round" ? `, round ${point.x}` : `, ${count(point.x)} updates`) : "");

/** A result for people; a perplexity may have no bound. */
function digits(value) {
  if (!Number.isFinite(value)) return "∞";
  return seen.is_share ? `${(100 * value).toFixed(1)} %` : value.toPrecision(3);
}

function figure(id, found, place) {
  tell(`${id}-value`, found ? digits(found.value) : "–");
  tell(`${id}-range`, found ? `${digits(found.low).replace(" %", "")} to ${digits(found.high)}${place}` : "not known yet");
}
