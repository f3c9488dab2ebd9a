// The swarm as this node sees it: itself in the middle, neighbours around it, then who else is in the roster.

import { delay, draw, make, row, short, count, size, byId, tell } from "./dom.js";

const MOST_DRAWN = 120; // of those in the roster only
const PATIENCE = 30; // seconds for which digests may differ while updates are under way
const GOLDEN = 2.399963; // radians; the outer dots then never stand in rows

/** In words, and as a class, how a neighbour's state compares with ours. */
export function agreement(node, known) {
  if (node.agrees) return ["same digest", "good"];
  if (node.known < known) return [`${count(known - node.known)} behind`, ""];
  if (node.known > known) return [`${count(node.known - known)} ahead`, ""];
  return (node.differs_for ?? 0) > PATIENCE ? ["digest differs", "bad"] : ["under way", ""];
}

export function showSwarm(swarm) {
  const self = swarm.nodes[0];
  const near = swarm.nodes.filter((node) => node.kind === "neighbour");
  const far = swarm.nodes.filter((node) => node.kind === "known");
  tell("swarm-text", `${count(near.length)} neighbours, ${count(far.length)} more in the roster`);
  drawGraph(byId("graph"), self, near, far.slice(0, MOST_DRAWN));
  byId("peers").replaceChildren(...(near.length ? near.map((node) => peer(node, self.known)) : [nobody()]));
}

function nobody() {
  const line = row([["no neighbours", "quiet"]]);
  line.firstChild.colSpan = 7;
  return line;
}

function peer(node, known) {
  const name = make("span", short(node.peer), "mono");
  name.title = node.peer;
  return row([
    name,
    [node.role, ""],
    [delay(node.latency), "number"],
    [size(node.bytes_sent), "number"],
    [size(node.bytes_received), "number"],
    [count(node.lag), "number"],
    agreement(node, known),
  ]);
}

function drawGraph(svg, self, near, far) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 200;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const middle = { x: width / 2, y: height / 2 };
  const shapes = [], dots = [];
  near.forEach((node, place) => {
    const angle = (place / near.length) * 2 * Math.PI - Math.PI / 2;
    const at = { x: middle.x + Math.cos(angle) * width * 0.3, y: middle.y + Math.sin(angle) * height * 0.33 };
    const [words, look] = agreement(node, self.known);
    shapes.push(draw("line", { class: `edge ${look}`, x1: middle.x, y1: middle.y, x2: at.x, y2: at.y }));
    const name = `${short(node.peer)} ${node.latency === null ? "" : delay(node.latency)}`;
    dots.push(dot(node, at, 8, words), label(name, at, at.y < middle.y - 1 ? -14 : 23));
  });
  far.forEach((node, place) => {
    const angle = place * GOLDEN, out = 0.44 + 0.05 * ((place % 5) / 5);
    const at = { x: middle.x + Math.cos(angle) * width * out, y: middle.y + Math.sin(angle) * height * out };
    dots.push(dot(node, at, 4, "from the roster"));
  });
  dots.push(dot(self, middle, 11, "this node"), label("this node", middle));
  svg.replaceChildren(...shapes, ...dots);
  svg.setAttribute("aria-label", `This node with ${near.length} neighbours; ${far.length} more are known`);
}

function dot(node, at, radius, words) {
  const circle = draw("circle", { class: `node ${node.kind} ${node.role === "relay" ? "relay" : ""}`, cx: at.x, cy: at.y, r: radius });
  circle.append(draw("title", {}, `${node.peer} (${node.role}): ${words}`));
  return circle;
}

const label = (text, at, below = 23) => draw("text", { x: at.x, y: at.y + below, "text-anchor": "middle" }, text);
