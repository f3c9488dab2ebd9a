// What was decided in the run, newest first: seals, announcements, members, what was taken back.

import { ask } from "./api.js";
import { byId, make, tell } from "./dom.js";
import { count } from "./format.js";

const MEMBERS = ["admit", "invite", "revoke", "revokeinvitation"];
const BESIDES = ["worth", "checkpoint", "evaluated", "close"]; // what comes with every seal
let timeline = { total: 0, entries: [], names: {} };

export async function showTimeline() {
  timeline = await ask("timeline");
  redraw();
}

function redraw() {
  byId("timeline-section").hidden = !timeline.total;
  const wanted = (one) => !BESIDES.includes(one.kind)
    && (one.kind !== "seal" || byId("timeline-seals").checked) && (!MEMBERS.includes(one.kind) || byId("timeline-members").checked);
  const shown = timeline.entries.filter(wanted);
  byId("timeline").replaceChildren(...shown.map(entry));
  tell("timeline-count", `${count(shown.length)} shown, of ${count(timeline.total)} decisions`);
}

const fixed = (value) => (Number.isFinite(value) ? value.toFixed(3) : "∞");

function entry(one) {
  const line = make("li", "", `event ${one.kind}`), found = one.evaluation;
  const words = make("span");
  words.append(make("bdi", one.text));
  line.append(make("span", one.kind.replace("revokeinvitation", "revoke"), "kind"), words);
  if (found) words.append(make("b", ` · ${timeline.names[found.metric] ?? found.metric} ${fixed(found.value)}`), make("span", ` (${fixed(found.low)} to ${fixed(found.high)})`, "quiet"));
  return line;
}

export function listenTimeline() {
  for (const id of ["timeline-seals", "timeline-members"]) byId(id).addEventListener("change", redraw);
}
