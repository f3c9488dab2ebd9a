// The course of the run: each contributor's updates until each round, and a slider over the rounds.

import { ask } from "./api.js";
import { areas } from "./chart.js";
import { byId, make, named, tell } from "./dom.js";
import { offer } from "./downloads.js";
import { count, key, percent } from "./format.js";

let history = null;
let chart = null;

export async function showHistory() {
  const slider = byId("scrub");
  const atEnd = !history || Number(slider.value) >= history.points.length - 1;
  const epoch = history?.points[Number(slider.value)]?.last_epoch;
  history = await ask("history");
  slider.max = Math.max(0, history.points.length - 1);
  const same = history.points.findIndex((point) => point.last_epoch >= epoch);
  slider.value = atEnd || same < 0 ? slider.max : same;
  redraw();
}

export function redraw() {
  if (!history?.points.length) return;
  const layers = history.leaders.map((leader, place) => ({ name: leader.name ?? leader.origin, values: leader.known, className: `f${place}` }));
  layers.push({ name: "others", values: history.others, className: "rest" });
  const xs = history.points.map((point) => point.last_epoch + 1);
  chart = areas(byId("history-chart"), xs, layers, { nameOfX: "round" });
  offer(byId("history-chart"), chart.table);
  move();
}

function move() {
  const place = Number(byId("scrub").value), point = history?.points[place];
  if (!point || !chart) return;
  const across = chart.x(point.last_epoch + 1);
  chart.mark.setAttribute("x1", across);
  chart.mark.setAttribute("x2", across);
  const rounds = point.first_epoch === point.last_epoch
    ? `round ${point.last_epoch + 1}` : `rounds ${point.first_epoch + 1} to ${point.last_epoch + 1}`;
  const words = `By the end of ${rounds}: ${count(point.known)} updates; ${count(point.updates)} of them new, from ${count(point.origins)} contributors.`;
  tell("history-text", words);
  byId("scrub").setAttribute("aria-valuetext", words);
  const lines = history.leaders.map((leader, rank) => item(named(leader.name, key(leader.origin), leader.origin), leader.known[place], point.known, rank));
  if (history.others[place]) lines.push(item("everybody else", history.others[place], point.known, "rest"));
  byId("history-leaders").replaceChildren(...lines);
}

function item(who, known, all, colour) {
  const line = make("li", "", `key key-${colour}`);
  line.append(who, ` ${count(known)} (${percent(known / (all || 1))})`);
  return line;
}

export function listenHistory() {
  byId("scrub").addEventListener("input", move);
}
