// Curves as SVG, in the pixels that there are. A curve is a list of [x, y]; y null is a gap.

import { draw, number } from "./dom.js";

const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** The frame of a chart: its size, and where x and y lie in it. */
export function frame(svg, [x0, x1], [y0, y1], labelOfX) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 150;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((value - y0) / (y1 - y0 || 1)) * (height - TOP - BOTTOM);
  const lines = [];
  for (const value of [y0, (y0 + y1) / 2, y1]) {
    lines.push(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    lines.push(draw("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  lines.push(draw("text", { x: LEFT, y: height - 4 }, labelOfX(x0)));
  lines.push(draw("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, labelOfX(x1)));
  return { x, y, lines, width, height };
}

/** Lowest and highest of all that is there, with some room, as a share of their distance. */
export function bounds(values, fromZero = false, share = 0.05) {
  const there = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (!there.length) return [0, 1];
  const low = fromZero ? 0 : Math.min(...there), high = Math.max(...there);
  const room = (high - low || Math.abs(high) || 1) * share;
  return [fromZero ? 0 : low - room, high + room];
}

export function path(points, x, y) {
  let text = "", pen = false;
  for (const [across, up] of points) {
    if (typeof up !== "number" || !Number.isFinite(up)) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${x(across).toFixed(1)} ${y(up).toFixed(1)}`;
    pen = true;
  }
  return text;
}

/** Several curves over the same x. */
export function curves(svg, series, { fromZero = false, labelOfX = String } = {}) {
  const points = series.flat();
  const xs = points.map(([across]) => across);
  const limits = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
  const { x, y, lines } = frame(svg, limits, bounds(points.map(([, up]) => up), fromZero), labelOfX);
  series.forEach((curve, place) => lines.push(draw("path", { class: `curve s${place}`, d: path(curve, x, y) })));
  svg.replaceChildren(...lines);
}

/** Measurements with their intervals: {x, value, low, high}; and what they are compared with, as a line. */
export function measurements(svg, measured, labelOfX, before = null) {
  const xs = measured.map((m) => m.x);
  const { x, y, lines, width } = frame(svg, [0, Math.max(1, ...xs)], bounds([before, ...measured.flatMap((m) => [m.low, m.high, m.value])]), labelOfX);
  if (Number.isFinite(before)) lines.push(draw("line", { class: "before", x1: LEFT, x2: width - RIGHT, y1: y(before), y2: y(before) }));
  lines.push(draw("path", { class: "curve s0", d: path(measured.map((m) => [m.x, m.value]), x, y) }));
  for (const m of measured) {
    if (Number.isFinite(m.low) && Number.isFinite(m.high)) {
      lines.push(draw("line", { class: "interval s0", x1: x(m.x), x2: x(m.x), y1: y(m.low), y2: y(m.high) }));
    }
    if (Number.isFinite(m.value)) lines.push(draw("circle", { class: "f0", cx: x(m.x), cy: y(m.value), r: 3.5 }));
  }
  svg.replaceChildren(...lines);
}

/** Areas on top of each other, the first one below: each {values, className}. Returns where x lies. */
export function areas(svg, xs, layers, labelOfX) {
  const below = xs.map(() => 0);
  const total = xs.map((_, place) => layers.reduce((sum, layer) => sum + layer.values[place], 0));
  const { x, y, lines, height } = frame(svg, [xs[0] ?? 0, xs.at(-1) ?? 1], [0, Math.max(1, ...total)], labelOfX);
  for (const layer of layers) {
    const above = below.map((value, place) => value + layer.values[place]);
    const there = xs.map((value, place) => `${x(value).toFixed(1)} ${y(above[place]).toFixed(1)}`);
    const back = xs.map((value, place) => `${x(value).toFixed(1)} ${y(below[place]).toFixed(1)}`).reverse();
    lines.push(draw("path", { class: layer.className, d: `M${[...there, ...back].join("L")}Z` }));
    above.forEach((value, place) => { below[place] = value; });
  }
  const mark = draw("line", { class: "mark", x1: 0, x2: 0, y1: TOP, y2: height - BOTTOM });
  svg.replaceChildren(...lines, mark);
  return { x, mark };
}
