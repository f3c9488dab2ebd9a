// The machine: the node's use of it, reasons for a pause and, for permitted visitors, pause, limits and leaving.

import { ask } from "./api.js";
import { curves, times } from "./chart.js";
import { byId, tell } from "./dom.js";
import { offer } from "./downloads.js";
import { count, percent, size } from "./format.js";

const SURE = 6000; // milliseconds within which a second click on Leave counts

function usage(gpu) {
  const more = [gpu.busy === null ? "" : `${percent(gpu.busy)} busy`, `${size(gpu.memory)} of ${size(gpu.memory_total)}`, gpu.celsius === null ? "" : `${Math.round(gpu.celsius)} °C`, gpu.watts === null ? "" : `${Math.round(gpu.watts)} W`];
  return more.filter(Boolean).join(", ");
}

export function showMachine(status, limits) {
  const machine = status.machine, gpus = machine?.gpus ?? [], devices = status.devices;
  tell("cpu", machine ? `${percent(Math.min(1, machine.cpu / machine.cores))} of ${Number(machine.cores.toFixed(1))} processors` : "–");
  tell("memory", machine ? `${size(machine.memory)} of ${size(machine.memory_total)}` : "–");
  byId("gpu-tile").hidden = byId("gpu-key").hidden = !gpus.length;
  tell("gpu-name", gpus.length === 1 ? gpus[0].name : "GPUs");
  tell("gpu", gpus.map((gpu) => gpus.length === 1 ? usage(gpu) : `${gpu.device} ${gpu.name}: ${usage(gpu)}`).join("; "));
  byId("devices-tile").hidden = devices.length < 2;
  tell("devices", devices.map((one) => `${one.name}: ${count(one.updates)}${one.problem ? " (failed)" : ""}`).join(", "));
  tell("traffic", `${size(status.bytes_sent)}, ${size(status.bytes_received)}`);
  const run = status.organised;
  tell("left", !run ? "no limit" : run.quota === null ? "not admitted" : `${count(run.room)} of ${count(run.quota)}`);
  tell("pauses", status.pauses.length ? `Paused: ${status.pauses.join("; ")}.` : "");
  const set = Object.entries(limits).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  tell("limits", set.length ? `Limits: ${set.join(", ")}` : "No limits are set.");
  byId("resume").disabled = !status.paused_by.includes("asked");
  for (const id of ["pause", "pause-hour", "resume"]) byId(id).hidden = status.role === "relay";
  for (const field of limitFields()) field.defaultValue = status.limits[field.name] ?? ""; // shown until somebody types
}

const limitFields = () => byId("control").querySelectorAll("input");

export function drawMachine(seen) {
  const points = (column) => seen.seconds.map((second, place) => [second - seen.now, column[place]]);
  const series = [{ name: "processors", points: points(seen.cpu) }];
  if (seen.gpu.some((share) => share !== null)) series.push({ name: "gpu share", points: points(seen.gpu) });
  const drawn = curves(byId("machine-chart"), series, { fromZero: true, across: times, nameOfX: "seconds" });
  offer(byId("machine-chart"), [[...drawn.table[0], "memory bytes"], ...drawn.table.slice(1).map((row, place) => [...row, seen.memory[place] ?? ""])]);
}

export function allowControl(may) {
  byId("control").hidden = !may;
  byId("no-control").hidden = may;
}

/** `refresh` shows the node's state anew. */
export function listenMachine(refresh) {
  const order = (id, path, body, words) => byId(id).addEventListener("click", () => send(path, body, words));
  async function send(path, body, words) {
    try {
      await ask(path, body);
      tell("control-note", words);
      await refresh();
      return true;
    } catch (error) {
      tell("control-note", error.message);
      return false;
    }
  }
  order("pause", "pause", {}, "Paused until you resume.");
  order("pause-hour", "pause", { seconds: 3600 }, "Paused for an hour.");
  order("resume", "resume", {}, "Resumed.");
  byId("control").addEventListener("submit", async (event) => {
    event.preventDefault();
    const changed = [...limitFields()].filter((field) => field.value !== field.defaultValue);
    if (!changed.length) return tell("control-note", "No limit was changed.");
    const wanted = Object.fromEntries(changed.map((field) => [field.name, field.value.trim() || null]));
    if (await send("limits", wanted, "The limits are in force.")) byId("control").reset(); // to what is in force
  });
  let asked = -Infinity;
  byId("leave").addEventListener("click", () => {
    if (performance.now() - asked < SURE) return void send("leave", {}, "The node leaves the run; all that is finished is kept.");
    asked = performance.now();
    tell("control-note", "Click again to end this node. What it has finished is kept, and it can join again.");
  });
}
