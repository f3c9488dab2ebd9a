// Small things that every part of the page uses. Text from the network becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Write text into an element, if it differs: screen readers then hear changes only. */
export function tell(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** The same for words with a mood: good, warn, bad or neutral. */
export function say(id, [text, mood]) {
  tell(id, text);
  for (const one of ["good", "warn", "bad"]) byId(id).classList.toggle(one, one === mood);
}

export function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  if (className) element.className = className;
  return element;
}

export function draw(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
}

/** A row of a table; cells are [text, class] or elements. */
export function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const place = document.createElement("td");
    if (cell instanceof Node) place.append(cell);
    else [place.textContent, place.className] = cell;
    line.append(place);
  }
  return line;
}

/** Who it is: a name, which anybody may choose, and always what nobody can choose beside it. */
export function named(name, id, whole) {
  const both = make("span", "", "named");
  if (name) both.append(make("bdi", name, "name"), " ");
  both.append(make("span", id, "mono"));
  both.title = whole;
  return both;
}

export const count = (number) => number.toLocaleString("en");

export function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 999.5) return `${unit === "B" || bytes >= 99.5 ? Math.round(bytes) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "unknown";
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function delay(seconds) {
  if (seconds === null) return "–";
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

export const rate = (number) => (number === null ? "unknown" : number < 100 ? number.toFixed(1) : count(Math.round(number)));

export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share >= 0.0995 || !share ? 0 : 1)} %`;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Three digits of anything: 0.123, 12.3, 1.23K. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return Math.abs(value) < 999.5 ? value.toPrecision(3) : compact.format(value);
}

/** A peer's id by its end, where peer ids differ. */
export const short = (id) => (id.length > 12 ? `…${id.slice(-11)}` : id);

/** An origin by the beginning of its key, which can be searched for. */
export const key = (origin) => origin.slice(0, 8);
