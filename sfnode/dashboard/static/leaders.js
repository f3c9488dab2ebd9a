// The leaderboard, a page of origins at a time, and the teams.

import { ask } from "./api.js";
import { byId, make, named, row, tell } from "./dom.js";
import { count, key, percent } from "./format.js";

const PAGE = 25;
const view = { offset: 0, find: "", total: 0 };
let latest = 0;

/** Request the wanted page and show it, unless a later request was sent meanwhile. */
export async function showLeaders() {
  const turn = ++latest;
  const query = new URLSearchParams({ offset: view.offset, limit: PAGE, find: view.find });
  const page = await ask(`origins?${query}`);
  if (turn !== latest) return;
  view.total = page.total;
  byId("leaders").replaceChildren(...page.origins.map(origin));
  const last = view.offset + page.origins.length;
  byId("boards").classList.toggle("with-worths", page.origins.some((one) => one.gain_share !== null));
  tell("page", page.origins.length ? `${count(view.offset + 1)} to ${count(last)} of ${count(page.total)} contributors` : "nobody");
  byId("earlier").disabled = view.offset === 0;
  byId("later").disabled = last >= page.total;
  byId("boards").classList.toggle("with-teams", page.teams.length > 0);
  byId("teams").replaceChildren(...page.teams.map(team));
}

function origin(one) {
  const words = make("span");
  words.append(named(one.name, key(one.origin), one.origin));
  if (one.own) words.append(" ", make("span", "this node", "tag"));
  if (one.cut) words.append(" ", make("span", "cut: it signed two histories", "tag bad"));
  if (one.left_out) words.append(" ", make("span", `left out: ${one.left_out}`, "tag bad"));
  const line = row([
    [count(one.rank), "number"],
    words,
    [count(one.updates), "number"],
    [percent(one.share), "number extra"],
    bar(one.share),
    [one.gain_share === null ? "" : percent(one.gain_share), "number worth"],
    [one.team ?? "", "extra isolated"],
    [`${one.first_epoch + 1} to ${one.last_epoch + 1}`, "number extra rounds"],
  ]);
  if (one.own) line.className = "own";
  return line;
}

const team = (one) => row([
  [one.team, "isolated"],
  [count(one.updates), "number"],
  [percent(one.share), "number"],
  [count(one.origins), "number extra"],
]);

function bar(share) {
  const bar = make("div", "", "bar");
  bar.style.width = `${(100 * share).toFixed(2)}%`;
  return bar;
}

export function listenLeaders(refresh) {
  const turn = (pages) => {
    view.offset = Math.max(0, Math.min(view.offset + pages * PAGE, view.total - 1));
    view.offset -= view.offset % PAGE;
    refresh();
  };
  byId("earlier").addEventListener("click", () => turn(-1));
  byId("later").addEventListener("click", () => turn(1));
  let waiting;
  byId("find").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      view.find = byId("find").value.toLowerCase().replace(/[^0-9a-f]/g, "");
      view.offset = 0;
      refresh();
    }, 150);
  });
}
