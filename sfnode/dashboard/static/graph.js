// The swarm as this node sees it: the node in the middle, neighbours around it, then other known nodes.

import { draw } from "./chart.js";
import { byId, named, row, tell } from "./dom.js";
import { count, delay, key, short, size } from "./format.js";

const MOST_DRAWN = 120; // of those that are only heard of
const LETTER = 6.5, LINE = 12; // pixels of a letter and of a line of a label
const LETTERS = 16; // of a name in the graph
const GOLDEN = 2.399963; // radians; the outer dots then never stand in rows

/** `agreement`: by neighbour, in words and as a mood, how its state compares with ours. */
export function showSwarm(swarm, agreement) {
  const self = swarm.nodes[0];
  const near = swarm.nodes.filter((node) => node.kind === "neighbour");
  const far = swarm.nodes.filter((node) => node.kind === "known");
  tell("swarm-text", `${count(near.length)} neighbours, ${count(far.length)} more heard of`);
  drawGraph(byId("graph"), self, near, far.slice(0, MOST_DRAWN), agreement);
  byId("peers").replaceChildren(...(near.length ? near.map((node) => peer(node, agreement)) : [nobody()]));
}

function nobody() {
  const line = row([["no neighbours", "quiet"]]);
  line.firstChild.colSpan = 7;
  return line;
}

function peer(node, agreement) {
  return row([
    called(node),
    [node.role, "extra"],
    [delay(node.latency), "number"],
    [size(node.bytes_sent), "number extra"],
    [size(node.bytes_received), "number extra"],
    [count(node.lag), "number extra"],
    agreement[node.peer],
  ]);
}

/** The name of a neighbour: its origin if it has proved one, otherwise its peer id. */
function called(node) {
  return named(node.name, node.origin ? key(node.origin) : short(node.peer), node.origin ? `${node.origin}, peer ${node.peer}` : node.peer);
}

function drawGraph(svg, self, near, far, agreement) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 200;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const middle = { x: width / 2, y: height / 2 };
  const edges = [], dots = [], labels = [];
  far.forEach((node, place) => {
    const angle = place * GOLDEN, out = 0.44 + 0.05 * ((place % 5) / 5);
    const at = { x: middle.x + Math.cos(angle) * width * out, y: middle.y + Math.sin(angle) * height * out };
    dots.push(dot(node, at, 4, "heard of"));
  });
  near.forEach((node, place) => {
    const angle = (place / near.length) * 2 * Math.PI - Math.PI / 2;
    const at = { x: middle.x + Math.cos(angle) * width * 0.32, y: middle.y + Math.sin(angle) * height * 0.3 };
    const [words, mood] = agreement[node.peer];
    edges.push(draw("line", { class: `edge ${mood}`, x1: middle.x, y1: middle.y, x2: at.x, y2: at.y }));
    dots.push(dot(node, at, 8, words));
    labels.push(label(node, at, at.y < middle.y - 1));
  });
  dots.push(dot(self, middle, 11, "this node"));
  labels.unshift({ at: middle, lines: ["this node", shortened(self.name ?? "")], below: 24 });
  svg.replaceChildren(...edges, ...dots, ...apart(labels, width));
  svg.setAttribute("aria-label", `This node with ${near.length} neighbours; ${far.length} more are known`);
}

function dot(node, at, radius, words) {
  const circle = draw("circle", { class: `node ${node.kind} ${node.role}`, cx: at.x, cy: at.y, r: radius });
  circle.append(draw("title", {}, `${node.peer} (${node.role}): ${words}`));
  return circle;
}

function label(node, at, above) {
  const lines = [shortened(node.name ?? short(node.peer)), node.latency === null ? "" : delay(node.latency)];
  return { at, lines, below: above ? -25 : 21 };
}

/** The labels that fit: a label that would overlap an earlier one is left out. */
function apart(labels, width) {
  const taken = [];
  return labels.flatMap(({ at, lines, below }) => {
    const half = (LETTER * Math.max(...lines.map((line) => line.length))) / 2, y = at.y + below;
    const x = Math.min(Math.max(at.x, half), width - half);
    const box = { left: x - half, right: x + half, top: y - LINE, bottom: y + LINE };
    if (taken.some((one) => box.left < one.right && one.left < box.right && box.top < one.bottom && one.top < box.bottom)) return [];
    taken.push(box);
    return lines.map((line, place) => draw("text", { x, y: y + place * LINE, "text-anchor": "middle" }, line));
  });
}

function shortened(name) {
  const letters = [...name];
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : name;
}

