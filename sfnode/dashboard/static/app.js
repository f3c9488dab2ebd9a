// Puts the page together: what is asked how often, and where it goes.

import { ask, repeat } from "./api.js";
import { curves, measurements } from "./chart.js";
import { byId, count, number, rate, size, span, tell } from "./dom.js";
import { showSwarm } from "./graph.js";
import { listenHistory, redraw, showHistory } from "./history.js";
import { listenLeaders, showLeaders } from "./leaders.js";
import { listenPrompt } from "./prompt.js";

const GOOD = ["training", "complete", "idle"];
let seen = null; // the last curves, to draw them again when the window changes

async function showNow() {
  const { status, progress, swarm } = await ask("now");
  document.title = `${status.run_name} – sfnode`;
  tell("run-name", `${status.run_name} (${status.run_id.slice(0, 8)}), ${status.role}`);
  tell("state", status.state);
  byId("state").className = `pill ${GOOD.includes(status.state) ? "good" : ""}`;
  tell("up", `up ${span(status.uptime)}`);
  showProgress(status, progress);
  showSwarm(swarm);
  const near = swarm.nodes.filter((node) => node.kind === "neighbour");
  tell("agree", near.length ? `${near.filter((node) => node.agrees).length} of ${near.length}` : "no neighbours");
  tell("lag", count(Math.max(0, ...near.map((node) => node.lag))));
  tell("traffic", `${size(status.bytes_sent)}, ${size(status.bytes_received)}`);
  tell("digest", status.digest.slice(0, 12));
  byId("digest").title = status.digest;
  showLimits(status);
  const relay = status.role === "relay";
  byId("ask").disabled ||= relay;
  byId("measure").disabled ||= relay;
  if (relay) for (const id of ["ask-note", "measure-note"]) tell(id, "A relay has no model: ask a trainer.");
  tell("foot", `sfnode ${status.version} · node ${status.peer} · log ${size(status.log_bytes)}`);
}

function showProgress(status, progress) {
  const left = (seconds) => (seconds === 0 ? "done" : seconds === null ? "time left unknown" : `${span(seconds)} left`);
  byId("run-bar").value = progress.known / progress.update_budget;
  tell("run-text", `${count(progress.known)} of ${count(progress.update_budget)} updates, ${left(progress.seconds_left)}`);
  byId("epoch-bar").value = progress.epoch_known / (progress.epoch_updates || 1);
  tell("epoch-text", `${progress.epoch + 1} of ${progress.epochs}: ${count(progress.epoch_known)} of ${count(progress.epoch_updates)}, ${left(progress.epoch_seconds_left)}`);
  tell("swarm-rate", rate(progress.updates_per_second));
  tell("own-rate", rate(status.updates_per_second));
  tell("loss-now", status.role === "relay" ? "none" : number(status.loss));
}

function showLimits(status) {
  const limits = Object.entries(status.limits ?? {}).filter(([, value]) => value !== null && value !== false && value !== "" && !(Array.isArray(value) && !value.length));
  tell("limits", limits.length ? `Limits: ${limits.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ")}` : "No limits are set.");
  const pauses = status.pauses ?? [];
  byId("pauses").hidden = !pauses.length;
  tell("pauses", `Paused: ${pauses.join("; ")}`);
}

async function showCurves() {
  seen = await ask("curves");
  drawCurves();
}

function drawCurves() {
  if (!seen) return;
  const ago = (seconds) => (seen.now - seconds < 2 ? "now" : `${span(seen.now - seconds)} ago`);
  const over = (column) => seen.seconds.map((second, place) => [second, column[place]]);
  curves(byId("loss-chart"), [over(seen.loss)], { labelOfX: ago });
  curves(byId("rate-chart"), [over(seen.swarm_rate), over(seen.own_rate)], { fromZero: true, labelOfX: ago });
  const measured = seen.measurements.map((m) => ({ ...m, x: m.known })).sort((a, b) => a.x - b.x);
  measurements(byId("metric-chart"), measured, (known) => `${count(Math.round(known))} updates`);
  const last = seen.measurements.filter((m) => !m.base).at(-1);
  if (last) {
    tell("metric-now", number(last.value));
    tell("metric-text", `${last.metric} (${number(last.low)} to ${number(last.high)}) on ${count(last.count)} rows at ${count(last.known)} updates`);
  }
}

async function measure() {
  const button = byId("measure");
  button.disabled = true;
  tell("measure-note", "measuring on held-out rows…");
  try {
    await ask("evaluate", {});
    tell("measure-note", "");
    await showCurves();
  } catch (error) {
    tell("measure-note", error.message);
  }
  button.disabled = false;
}

/** A job that says when the node is not there, and goes on when it is back. */
function watched(job) {
  return async () => {
    try {
      await job();
      byId("gone").hidden = true;
    } catch (error) {
      if (!error.gone) throw error;
      tell("gone", `The node does not answer: ${error.message}. Waiting for it.`);
      byId("gone").hidden = false;
      tell("state", "not running");
      byId("state").className = "pill bad";
    }
  };
}

const leaders = watched(showLeaders);
listenLeaders(leaders);
listenHistory();
listenPrompt();
byId("measure").addEventListener("click", measure);
repeat(watched(showNow), 2);
repeat(watched(showCurves), 3);
repeat(leaders, 10);
repeat(watched(showHistory), 10);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { drawCurves(); redraw(); }, 100);
});
