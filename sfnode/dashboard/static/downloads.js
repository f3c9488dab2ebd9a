// Every chart as a table (CSV) and as a picture (PNG), made in the browser of what it shows.

import { make } from "./dom.js";

const SCALE = 2; // pixels of the picture for one on the page
const tables = new WeakMap(); // by chart: its data, the names of the columns first

/** Store the data of a chart for the download buttons beside it. */
export function offer(svg, table) {
  if (!tables.has(svg)) svg.parentElement.append(buttons(svg));
  tables.set(svg, table);
}

function buttons(svg) {
  const row = make("p", "", "downloads");
  for (const [kind, save] of [["CSV", saveTable], ["PNG", savePicture]]) {
    const button = make("button", kind);
    button.type = "button";
    button.title = `Save this chart as ${kind}`;
    button.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: save as ${kind}`);
    button.addEventListener("click", () => save(svg));
    row.append(button);
  }
  return row;
}

function saveTable(svg) {
  const text = tables.get(svg).map((row) => row.map(cell).join(",")).join("\r\n");
  save(new Blob([`${text}\r\n`], { type: "text/csv" }), `${svg.id}.csv`);
}

/** A cell as RFC 4180 has it. A spreadsheet takes text that begins so for a formula, and names are anybody's. */
export function cell(value) {
  if (typeof value !== "string") return value ?? "";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function savePicture(svg) {
  picture(svg).toBlob((blob) => save(blob, `${svg.id}.png`), "image/png");
}

/** Draw the shapes of a chart as they look on the page. */
export function picture(svg) {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  [canvas.width, canvas.height] = [width * SCALE, height * SCALE];
  pen.scale(SCALE, SCALE);
  pen.fillStyle = getComputedStyle(svg.closest("section")).backgroundColor;
  pen.fillRect(0, 0, width, height);
  for (const shape of svg.children) {
    const style = getComputedStyle(shape), at = (name) => Number(shape.getAttribute(name));
    pen.globalAlpha = Number(style.opacity);
    pen.lineWidth = parseFloat(style.strokeWidth);
    pen.setLineDash((style.strokeDasharray.match(/[\d.]+/g) ?? []).map(Number));
    [pen.fillStyle, pen.strokeStyle] = [style.fill, style.stroke];
    if (shape.tagName === "text") {
      pen.font = `${style.fontSize} ${style.fontFamily}`;
      pen.textAlign = { middle: "center", end: "right" }[shape.getAttribute("text-anchor")] ?? "left";
      pen.fillText(shape.textContent, at("x"), at("y"));
      continue;
    }
    const path = new Path2D(shape.tagName === "path" ? shape.getAttribute("d") : "");
    if (shape.tagName === "line") { path.moveTo(at("x1"), at("y1")); path.lineTo(at("x2"), at("y2")); }
    if (shape.tagName === "rect") path.rect(at("x"), at("y"), at("width"), at("height"));
    if (shape.tagName === "circle") path.arc(at("cx"), at("cy"), at("r"), 0, 2 * Math.PI);
    if (style.fill !== "none" && shape.tagName !== "line") pen.fill(path);
    if (style.stroke !== "none") pen.stroke(path);
  }
  return canvas;
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
