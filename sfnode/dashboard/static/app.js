// Puts the page together: the requests, their intervals, and the places of their answers.

import { ask, repeat } from "./api.js";
import { curves, times, wide } from "./chart.js";
import { byId, make, say, tell } from "./dom.js";
import { offer } from "./downloads.js";
import { count, number, pace, partOf, short, size, span } from "./format.js";
import { showSwarm } from "./graph.js";
import { listenInvitation, showInvitation } from "./invitation.js";
import { listenHistory, redraw as redrawHistory, showHistory } from "./history.js";
import { listenLeaders, showLeaders } from "./leaders.js";
import { allowControl, drawMachine, listenMachine, showMachine } from "./machine.js";
import { listenPrompt } from "./prompt.js";
import { redraw as redrawQuality, showQuality } from "./quality.js";
import { listenSamples, showSamples } from "./samples.js";
import { listenTimeline, showTimeline } from "./timeline.js";

const failures = new Map(); // what went wrong, by what was asked
let seen = null; // the last curves, to draw them again when the window changes
let trained = { name: "loss", rises: false }; // what losses are told as
let seenAt = null; // when the node last answered

async function showNow() {
  const now = await ask("now");
  const { status, progress, swarm } = now;
  seenAt = new Date();
  const [name, rises] = now.trained;
  trained = { name, rises };
  tell("trained", trained.name);
  tell("moved", now.moved);
  document.title = `${now.alarms.length ? "(!) " : ""}${status.run_name} – sfnode`;
  tell("run-name", `${status.run_name} (${status.run_id.slice(0, 8)}), ${status.role}`);
  tell("state", status.state.replaceAll("-", " "));
  byId("state").className = `pill ${now.alarms.length ? "bad" : now.doing[1]}`;
  showAlarms(now.alarms);
  tell("up", `up ${span(status.uptime)}`);
  say("doing", now.doing);
  showProgress(status, progress);
  showMachine(status, now.limits);
  showSwarm(swarm, now.agreement);
  say("together", now.together);
  if (status.role === "relay") showRelay();
  tell("foot", `sfnode ${status.version} · node ${short(status.peer)} · log ${size(status.log_bytes)} · fingerprint ${status.digest.slice(0, 12)}`);
  byId("foot").title = `${status.peer}, fingerprint ${status.digest}`;
}

/** Alarms, above everything else. Screen readers announce each once. */
function showAlarms(alarms) {
  const texts = alarms.map(([text]) => text);
  byId("alarms").hidden = !texts.length;
  if (texts.join() === byId("alarms").dataset.texts) return;
  byId("alarms").dataset.texts = texts.join();
  byId("alarms").replaceChildren(...texts.map((text) => make("p", text)));
}

async function showAbout() {
  const { about, task, control } = await ask("about");
  allowControl(control);
  tell("description", about.description || "Its owner has not said.");
  tell("about-model", about.model + (about.parent ? `, a state of run ${about.parent.slice(0, 8)}` : ""));
  const answers = about.answers.length ? `, ${about.answers.join(" or ")}` : "";
  tell("about-task", `${task}${answers}`);
  byId("about-task").title = about.template;
  tell("about-data", about.train || "everybody's own");
  tell("about-licence", about.licence ?? "not stated here");
}

async function showOwn() {
  say("own", (await ask("own")).words);
}

function showRelay() {
  for (const id of ["ask", "measure"]) {
    byId(id).disabled = true;
    tell(`${id}-note`, "A relay has no model: ask a trainer.");
  }
  tell("samples-note", "A relay has no model; trainers record here how it answers test rows.");
}

function showProgress(status, progress) {
  const left = (seconds) => (seconds === 0 ? "done" : seconds === null ? "time left unknown" : `${span(seconds)} left`);
  byId("run-bar").value = Math.min(1, progress.known / progress.update_budget);
  tell("run-text", `${partOf(progress.known, progress.update_budget)} updates, ${left(progress.seconds_left)}`);
  const full = progress.epoch_known >= progress.epoch_updates;
  byId("round-bar").value = full ? 1 : progress.epoch_known / progress.epoch_updates;
  const epoch = `${progress.epoch + (status.organised ? 0 : 1)} of ${progress.epochs}: ${partOf(progress.epoch_known, progress.epoch_updates)}`;
  tell("round-text", full && status.organised && seconds(progress) ? `${epoch}, to be closed` : `${epoch}, ${left(progress.epoch_seconds_left)}`);
  tell("own-rate", pace(status.updates_per_second));
  tell("swarm-rate", pace(progress.updates_per_second));
  tell("loss-now", status.role === "relay" ? "none" : number(told(status.loss)));
  const run = status.organised;
  if (run) tell("counted-text", `${count(run.sealed)} rounds count, with ${count(run.counted)} updates${run.behind ? `; ${count(run.behind)} of them are not here yet` : ""}.${run.stand_ins ? ` ${run.stand_ins_here} of ${run.stand_ins} who stand in for the organiser are here.` : ""}`);
}

const told = (loss) => (trained.rises && loss !== null ? 1 - loss : loss);

const seconds = (progress) => progress.seconds_left !== 0; // the run goes on

async function showCurves() {
  seen = await ask("curves");
  drawCurves();
}

function drawCurves() {
  if (!seen) return;
  const over = (name, column) => ({ name, points: seen.seconds.map((second, place) => [second - seen.now, column[place]]) });
  const time = { across: times, nameOfX: "seconds" };
  const loss = seen.loss.map(told);
  const charts = {
    "loss-chart": [[over(trained.name, loss)], { ...time, log: !trained.rises && wide(loss) }],
    "rate-chart": [[over("all nodes", seen.swarm_rate), over("this node", seen.own_rate)], { ...time, fromZero: true }],
  };
  for (const [id, [series, options]] of Object.entries(charts)) offer(byId(id), curves(byId(id), series, options).table);
  drawMachine(seen);
  describe("loss-chart", `Training ${trained.name} over time`, loss);
  describe("rate-chart", "Updates per second of all nodes over time", seen.swarm_rate);
}

function describe(id, words, values) {
  const there = values.filter((value) => value !== null);
  byId(id).setAttribute("aria-label", there.length ? `${words}, between ${number(Math.min(...there))} and ${number(Math.max(...there))}` : words);
}

async function measure() {
  const button = byId("measure");
  button.disabled = true;
  tell("measure-note", "measuring on test rows…");
  try {
    await ask("evaluate", {});
    tell("measure-note", "");
    await showQuality();
  } catch (error) {
    tell("measure-note", error.message);
  }
  button.disabled = false;
}

/** Return a job that never fails: the page shows the error, and continues once there is none. */
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

const leaders = watched("contributions", showLeaders), now = watched("state", showNow);
listenLeaders(leaders);
listenHistory();
listenInvitation();
listenMachine(now);
listenPrompt();
listenSamples();
listenTimeline();
byId("measure").addEventListener("click", measure);
repeat(now, 2);
repeat(watched("quality of the model", showQuality), 5);
repeat(watched("description", showAbout), 30);
repeat(watched("invitation", showInvitation), 30);
repeat(watched("contribution of this node", showOwn), 10);
repeat(watched("curves", showCurves), 3);
repeat(watched("samples", showSamples), 10);
repeat(leaders, 10);
repeat(watched("timeline", showTimeline), 10);
repeat(watched("history", showHistory), 10);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { drawCurves(); redrawQuality(); redrawHistory(); }, 100);
});
