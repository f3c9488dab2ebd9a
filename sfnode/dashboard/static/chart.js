// Charts as SVG, in the pixels that there are, of the data that they are given: this module knows no page and
// keeps nothing. Each returns where x lies and its data as a table, whose first row has the names of the columns.

import { ago, onAxis } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 22;
const LETTER = 7, LINE = 13; // pixels of a digit on an axis, and of a line of text
const TIMES = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

export function draw(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
}

/** Several curves over the same x: [{name, points: [[x, y], ...]}, ...]; y null is a gap. */
export function curves(svg, series, { fromZero = false, log = false, across = numbers, nameOfX = "x" } = {}) {
  const points = series.flatMap((curve) => curve.points);
  const xs = [...points.map(([x]) => x), ...(across === times ? [0] : [])], ys = points.map(([, y]) => y);
  const { x, y, lines } = frame(svg, ends(xs), limits(ys, { fromZero, log }), across, log);
  series.forEach((curve, place) => lines.push(draw("path", { class: `curve s${place}`, d: path(curve.points, x, y) })));
  svg.replaceChildren(...lines);
  const rows = (series[0]?.points ?? []).map(([at], place) => [at, ...series.map((curve) => curve.points[place]?.[1] ?? "")]);
  return { x, table: [[nameOfX, ...series.map((curve) => curve.name)], ...rows] };
}

/** Measurements with their 95 % intervals, [{x, value, low, high}, ...], above what they are compared with:
 *  the lines [{name, value, low, high}, ...], the first of which stands for the model before training. */
export function measurements(svg, measured, { compared = [], across = wholes, nameOfX = "round", log = false, words = String, percent = false } = {}) {
  const shown = compared.filter((one) => Number.isFinite(one?.value));
  const ys = [...shown, ...measured].flatMap((m) => [m.low, m.high, m.value]);
  const { x, y, lines, width } = frame(svg, [0, Math.max(1, ...measured.map((m) => m.x))], limits(ys, { log }), across, log, percent);
  lines.push(...references(shown, y, width, words));
  const there = measured.filter((m) => Number.isFinite(m.low) && Number.isFinite(m.high));
  const back = there.toReversed().map((m) => [m.x, m.low]);
  if (there.length > 1) lines.push(draw("path", { class: "band f0", d: `${path([...there.map((m) => [m.x, m.high]), ...back], x, y)}Z` }));
  else for (const m of there) lines.push(draw("line", { class: "interval s0", x1: x(m.x), x2: x(m.x), y1: y(m.low), y2: y(m.high) }));
  lines.push(draw("path", { class: "curve s0", d: path(measured.map((m) => [m.x, m.value]), x, y) }));
  const radius = measured.length > 60 ? 2 : 3.5;
  for (const m of measured.filter((one) => Number.isFinite(one.value))) {
    const point = draw("circle", { class: "f0", cx: x(m.x), cy: y(m.value), r: radius });
    point.append(draw("title", {}, `${nameOfX} ${m.x}: ${words(m.value)} (${words(m.low)} to ${words(m.high)})`));
    lines.push(point);
  }
  svg.replaceChildren(...lines);
  const rows = [...shown.map((one) => [one.name, one.value, one.low, one.high]), ...measured.map((m) => [m.x, m.value, m.low, m.high])];
  return { x, table: [[nameOfX, "value", "low", "high"], ...rows] };
}

/** Lines across, with their names at the right end, none upon another; the first one has its interval as a band. */
function references(shown, y, width, words) {
  const lines = [], names = [];
  shown.forEach((one, place) => {
    if (place === 0 && Number.isFinite(one.low) && Number.isFinite(one.high)) {
      lines.push(draw("rect", { class: "band rest", x: LEFT, y: y(one.high), width: width - LEFT - RIGHT, height: Math.max(1, y(one.low) - y(one.high)) }));
    }
    lines.push(draw("line", { class: `before b${place}`, x1: LEFT, x2: width - RIGHT, y1: y(one.value), y2: y(one.value) }));
    names.push({ at: y(one.value) - 5, text: `${one.name} ${words(one.value)}` });
  });
  let free = Infinity; // the height that is free below the name above; the lowest names keep their places
  for (const name of names.toSorted((a, b) => b.at - a.at)) {
    const at = Math.max(TOP, Math.min(name.at, free));
    lines.push(draw("text", { class: "of-line", x: width - RIGHT - 4, y: at, "text-anchor": "end" }, name.text));
    free = at - LINE;
  }
  return lines;
}

/** Areas on top of each other, the first one below: [{name, values, className}, ...]; `mark` is a line that
 *  whoever calls moves. */
export function areas(svg, xs, layers, { across = wholes, nameOfX = "x" } = {}) {
  const below = xs.map(() => 0);
  const total = xs.map((_, place) => layers.reduce((sum, layer) => sum + layer.values[place], 0));
  const { x, y, lines, height } = frame(svg, ends(xs), [0, Math.max(1, ...total)], across);
  for (const layer of layers) {
    const above = below.map((value, place) => value + layer.values[place]);
    const there = xs.map((value, place) => [value, above[place]]);
    const back = xs.map((value, place) => [value, below[place]]).reverse();
    lines.push(draw("path", { class: layer.className, d: `${path([...there, ...back], x, y)}Z` }));
    above.forEach((value, place) => { below[place] = value; });
  }
  const mark = draw("line", { class: "mark", x1: 0, x2: 0, y1: TOP, y2: height - BOTTOM });
  svg.replaceChildren(...lines, mark);
  const rows = xs.map((at, place) => [at, ...layers.map((layer) => layer.values[place])]);
  return { x, mark, table: [[nameOfX, ...layers.map((layer) => layer.name)], ...rows] };
}

// -- axes ----------------------------------------------------------------------------------------------------

/** The frame of a chart: its size, and where x and y lie in it. `across` gives the ticks of x. */
function frame(svg, [x0, x1], [y0, y1], across, log = false, percent = false) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 150;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const scale = log ? Math.log10 : (value) => value, [low, high] = [scale(y0), scale(y1)];
  const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((scale(value) - low) / (high - low || 1)) * (height - TOP - BOTTOM);
  const lines = [];
  const many = Math.max(3, Math.round(height / 45));
  const ticks = percent ? numbers(100 * y0, 100 * y1, many).map(([value, words]) => [value / 100, `${words} %`]) : (log ? powers : numbers)(y0, y1, many);
  for (const [value, words] of ticks) {
    lines.push(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    lines.push(draw("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, words));
  }
  let taken = -Infinity; // where the label before ends
  for (const [value, words] of across(x0, x1, Math.max(2, Math.round((width - LEFT) / 110)))) {
    const half = (words.length * LETTER) / 2, at = Math.min(Math.max(x(value), LEFT + half - 12), width - half);
    lines.push(draw("line", { class: "grid", x1: x(value), x2: x(value), y1: height - BOTTOM, y2: height - BOTTOM + 4 }));
    if (at - half < taken + LETTER) continue;
    lines.push(draw("text", { x: at, y: height - 5, "text-anchor": "middle" }, words));
    taken = at + half;
  }
  return { x, y, lines, width, height };
}

/** Round numbers between two others, about `many` of them, 1, 2 or 5 times a power of ten apart. */
export function numbers(low, high, many, least = 0) {
  const rough = Math.max((high - low) / many, least) || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * (1 - 1e-9));
  return multiples(low, high, step).map((value) => [value, onAxis(value, step)]);
}

/** The same for whole numbers, such as rounds or updates. */
export const wholes = (low, high, many) => numbers(low, high, many, 1);

/** Powers of ten between two numbers, and where these are few twice and five times as much. */
function powers(low, high, many) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const n of Math.log10(high / low) < many / 2 ? [1, 2, 5] : [1]) all.push(n * 10 ** power);
  }
  return all.filter((value) => value >= low && value <= high).map((value) => [value, onAxis(value, value)]);
}

/** Times as seconds before now, which is 0. */
export function times(low, high, many) {
  const rough = (high - low) / many, step = TIMES.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400);
  return multiples(low, high, step).map((value) => [value, value === 0 ? "now" : `${ago(-value)} ago`]);
}

function multiples(low, high, step) {
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step || 0);
  return found;
}

const finite = (values) => values.filter((value) => typeof value === "number" && Number.isFinite(value));

function ends(values) {
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

/** Whether a logarithmic axis shows more of these values: all are positive, and some many times the others. */
export function wide(values, times = 10) {
  const there = finite(values);
  return there.length > 0 && Math.min(...there) > 0 && Math.max(...there) > times * Math.min(...there);
}

/** The lowest and the highest of all values, with some room. */
function limits(values, { fromZero = false, log = false } = {}) {
  const there = finite(values).filter((value) => !log || value > 0);
  if (!there.length) return log ? [0.1, 1] : [0, 1];
  const low = Math.min(...there), high = Math.max(...there);
  if (log) return [low / 1.1, high * 1.1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [fromZero ? 0 : low - room, high + room];
}

function path(points, x, y) {
  let text = "", pen = false;
  for (const [across, up] of points) {
    if (typeof up !== "number" || !Number.isFinite(up)) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${x(across).toFixed(1)} ${y(up).toFixed(1)}`;
    pen = true;
  }
  return text;
}
