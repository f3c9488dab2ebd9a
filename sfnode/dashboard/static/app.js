// Puts the page together: what is asked how often, and where it goes.

import { ask, repeat } from "./api.js";
import { curves, measurements, times, wholes, wide } from "./chart.js";
import { byId, make, say, tell } from "./dom.js";
import { count, number, percent, rate, short, size, span } from "./format.js";
import { showSwarm } from "./graph.js";
import { listenHistory, redraw, showHistory } from "./history.js";
import { listenLeaders, showLeaders } from "./leaders.js";
import { listenPrompt } from "./prompt.js";

const failures = new Map(); // what went wrong, by what was asked
let seen = null; // the last curves, to draw them again when the window changes
let seenAt = null; // when the node last answered
let organised = false; // whether somebody organises the run

async function showNow() {
  const now = await ask("now");
  const { status, progress, swarm } = now;
  seenAt = new Date();
  document.title = `${now.alarms.length ? "(!) " : ""}${status.run_name} – sfnode`;
  tell("run-name", `${status.run_name} (${status.run_id.slice(0, 8)}), ${status.role}`);
  tell("state", status.state);
  byId("state").className = `pill ${now.alarms.length ? "bad" : now.doing[1]}`;
  showAlarms(now.alarms);
  tell("up", `up ${span(status.uptime)}`);
  say("doing", now.doing);
  showRun(status.organised, now.health);
  showProgress(status, progress);
  showSwarm(swarm, now.agreement);
  say("together", now.together);
  tell("traffic", `${size(status.bytes_sent)}, ${size(status.bytes_received)}`);
  tell("digest", status.digest.slice(0, 12));
  byId("digest").title = status.digest;
  const limits = Object.entries(now.limits).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  tell("limits", limits.length ? `Limits: ${limits.join(", ")}` : "No limits are set.");
  if (status.role === "relay") showRelay();
  tell("foot", `sfnode ${status.version} · node ${short(status.peer)} · log ${size(status.log_bytes)}`);
  byId("foot").title = status.peer;
}

/** What somebody has to see to, above everything else; screen readers hear it once. */
function showAlarms(alarms) {
  const texts = alarms.map(([text]) => text);
  byId("alarms").hidden = !texts.length;
  if (texts.join() === byId("alarms").dataset.texts) return;
  byId("alarms").dataset.texts = texts.join();
  byId("alarms").replaceChildren(...texts.map((text) => make("p", text)));
}

/** How an organised run does, and what this node may do in it. */
function showRun(run, health) {
  for (const id of ["seals", "health-tile", "quota-tile"]) byId(id).hidden = !run;
  organised = run !== null;
  if (!run) return;
  const words = health ?? ["nothing was evaluated yet", "neutral"];
  tell("health", run.health.verdict === "worse" ? "WORSE" : run.health.verdict.replace("-", " "));
  byId("health").className = words[1];
  say("health-text", words);
  tell("quota", run.quota === null ? "not admitted" : `${count(run.room)} of ${count(run.quota)}`);
  tell("sealed-text", `${count(run.sealed)} epochs are sealed; ${count(run.counted)} updates count${run.behind ? `; ${count(run.behind)} of those named are not here yet` : ""}.`);
}

async function showSeals() {
  if (!organised) return;
  const { evaluations, health } = await ask("seals");
  byId("seal-chart").toggleAttribute("hidden", !health.latest);
  const seals = evaluations.filter((m) => !m.base && m.metric === health.latest?.metric);
  measurements(byId("seal-chart"), seals.map((m) => ({ ...m, x: m.epoch })), { compared: health.base ? [{ ...health.base, name: "base model" }] : [] });
}

function showRelay() {
  for (const id of ["ask", "measure"]) {
    byId(id).disabled = true;
    tell(`${id}-note`, "A relay has no model: ask a trainer.");
  }
}

function showProgress(status, progress) {
  const left = (seconds) => (seconds === 0 ? "done" : seconds === null ? "time left unknown" : `${span(seconds)} left`);
  byId("run-bar").value = progress.known / progress.update_budget;
  tell("run-text", `${count(progress.known)} of ${count(progress.update_budget)} updates, ${left(progress.seconds_left)}`);
  byId("epoch-bar").value = progress.epoch_known / (progress.epoch_updates || 1);
  tell("epoch-text", `${progress.epoch + (status.organised ? 0 : 1)} of ${progress.epochs}: ${count(progress.epoch_known)} of ${count(progress.epoch_updates)}, ${left(progress.epoch_seconds_left)}`);
  tell("contributed", status.origin ? `${count(status.contributed)} (${percent(status.contributed / (status.known || 1))})` : "none: a relay");
  tell("own-rate", rate(status.updates_per_second));
  tell("swarm-rate", rate(progress.updates_per_second));
  tell("loss-now", status.role === "relay" ? "none" : number(status.loss));
}

async function showCurves() {
  seen = await ask("curves");
  drawCurves();
}

function drawCurves() {
  if (!seen) return;
  const over = (name, column) => ({ name, points: seen.seconds.map((second, place) => [second - seen.now, column[place]]) });
  const time = { across: times, nameOfX: "seconds" };
  curves(byId("loss-chart"), [over("loss", seen.loss)], { ...time, log: wide(seen.loss) });
  curves(byId("rate-chart"), [over("all nodes", seen.swarm_rate), over("this node", seen.own_rate)], { ...time, fromZero: true });
  describe("loss-chart", "Training loss over time", seen.loss);
  describe("rate-chart", "Updates per second of all nodes over time", seen.swarm_rate);
  drawMeasurements();
}

function describe(id, words, values) {
  const there = values.filter((value) => value !== null), low = Math.min(...there), high = Math.max(...there);
  byId(id).setAttribute("aria-label", `${words}, between ${number(low)} and ${number(high)}`);
}

function drawMeasurements() {
  const last = seen.measurements.findLast((m) => !m.base);
  const base = seen.measurements.findLast((m) => m.base && !m.calibrated);
  const calibrated = seen.measurements.findLast((m) => m.base && m.calibrated);
  byId("metric-chart").toggleAttribute("hidden", !last);
  if (!last) return;
  const alike = seen.measurements.filter((m) => m.calibrated === last.calibrated);
  const measured = alike.map((m) => ({ ...m, x: m.known })).sort((a, b) => a.x - b.x);
  measurements(byId("metric-chart"), measured, { across: wholes, nameOfX: "updates" });
  tell("metric-now", number(last.value));
  const before = (base ? `; the base model: ${number(base.value)}` : "") + (calibrated ? `, calibrated ${number(calibrated.value)}` : "");
  tell("metric-text", `${last.metric} (${number(last.low)} to ${number(last.high)}) on ${count(last.count)} rows at ${count(last.known)} updates${before}`);
}

async function measure() {
  const button = byId("measure");
  button.disabled = true;
  tell("measure-note", "measuring on held-out rows…");
  try {
    seen = await ask("evaluate", {});
    tell("measure-note", "");
    drawCurves();
  } catch (error) {
    tell("measure-note", error.message);
  }
  button.disabled = false;
}

/** A job that never fails: the page says what is wrong, and goes on when it is right again. */
function watched(what, job) {
  return async () => {
    try {
      await job();
      failures.delete(what);
    } catch (error) {
      failures.set(what, error);
      if (!error.gone) console.error(error);
    }
    showTroubles();
  };
}

function showTroubles() {
  const gone = [...failures.values()].find((error) => error.gone);
  const [what, other] = failures.entries().next().value ?? [];
  byId("gone").hidden = !failures.size;
  if (!failures.size) return;
  const old = seenAt ? ` What is shown is from ${seenAt.toLocaleTimeString()}.` : "";
  tell("gone", gone ? `The node does not answer: ${gone.message}. Waiting for it.${old}` : `The ${what} could not be shown: ${other.message}`);
  if (gone) {
    tell("state", "no answer");
    byId("state").className = "pill bad";
    say("doing", ["The node does not answer.", "bad"]);
  }
}

const leaders = watched("contributions", showLeaders);
listenLeaders(leaders);
listenHistory();
listenPrompt();
byId("measure").addEventListener("click", measure);
repeat(watched("state", showNow), 2);
repeat(watched("curves", showCurves), 3);
repeat(watched("seals", showSeals), 5);
repeat(leaders, 10);
repeat(watched("history", showHistory), 10);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { drawCurves(); redraw(); }, 100);
});
