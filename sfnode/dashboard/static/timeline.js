// What was decided in the run, newest first, with the time at which it came here: rounds that count,
// announcements, members, what was taken back.

import { ask } from "./api.js";
import { byId, make, tell } from "./dom.js";
import { count } from "./format.js";

const MEMBERS = ["admit", "invite", "revoke", "revokeinvitation"];
const BESIDES = ["worth", "checkpoint", "evaluated", "close"]; // what comes with every seal
let timeline = { total: 0, entries: [], measured: {} };

export async function showTimeline() {
  timeline = await ask("timeline");
  redraw();
}

function redraw() {
  byId("timeline-section").hidden = !timeline.total;
  const wanted = (one) => !BESIDES.includes(one.kind)
    && (one.kind !== "seal" || byId("timeline-rounds").checked) && (!MEMBERS.includes(one.kind) || byId("timeline-members").checked);
  const shown = timeline.entries.filter(wanted);
  byId("timeline").replaceChildren(...shown.map(entry));
  tell("timeline-count", `${count(shown.length)} shown, of ${count(timeline.total)} decisions`);
}

const DATE = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false };

const when = (seconds) => (seconds === null ? "" : new Date(1000 * seconds).toLocaleString("en-GB", DATE).replace(",", ""));

function entry(one) {
  const line = make("li", "", `event ${one.kind}`), found = timeline.measured[one.position];
  const words = make("span");
  words.append(make("bdi", one.text));
  line.append(make("span", when(one.arrived), "when"), words);
  if (found) words.append(make("span", ` · ${found}`, "quiet"));
  return line;
}

export function listenTimeline() {
  for (const id of ["timeline-rounds", "timeline-members"]) byId(id).addEventListener("change", redraw);
}
