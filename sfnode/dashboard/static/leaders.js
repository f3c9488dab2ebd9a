// The leaderboard, a page at a time: however many origins there are, the page holds few of them.

import { ask } from "./api.js";
import { byId, count, make, row, short, tell } from "./dom.js";

const PAGE = 25;
const view = { offset: 0, find: "", total: 0 };
let latest = 0;

/** Ask for the page that is wanted and show it, unless a later question has been asked meanwhile. */
export async function showLeaders() {
  const turn = ++latest;
  const query = new URLSearchParams({ offset: view.offset, limit: PAGE, find: view.find });
  const page = await ask(`origins?${query}`);
  if (turn !== latest) return;
  view.total = page.total;
  byId("leaders").replaceChildren(...page.origins.map(line));
  const last = view.offset + page.origins.length;
  tell("page", page.total ? `${count(view.offset + 1)} to ${count(last)} of ${count(page.total)} origins` : "no origin");
  byId("earlier").disabled = view.offset === 0;
  byId("later").disabled = last >= page.total;
}

function line(origin) {
  const name = make("span", short(origin.origin), "mono");
  name.title = origin.origin;
  const words = make("span");
  words.append(name, origin.own ? " this node" : "", origin.cut ? " (cut: it signed two histories)" : "");
  const bar = make("div", "", "bar");
  bar.style.width = `${(100 * origin.share).toFixed(2)}%`;
  const line = row([
    [count(origin.rank), "number"],
    words,
    [count(origin.updates), "number"],
    [`${(100 * origin.share).toFixed(origin.share < 0.1 ? 2 : 1)} %`, "number"],
    bar,
    [`${origin.first_epoch + 1} to ${origin.last_epoch + 1}`, "number"],
  ]);
  if (origin.own) line.className = "own";
  return line;
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
