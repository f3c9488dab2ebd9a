// Numbers and ids for people. Pure: knows neither a page nor a node.

export const count = (number) => number.toLocaleString("en");

/** A part of a target, such as `3 of 10`; an excess over the target is named as such. */
export const partOf = (part, whole) => (part <= whole ? `${count(part)} of ${count(whole)}` : `${count(whole)} and ${count(part - whole)} more`);

export function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 999.5) return `${unit === "B" || bytes >= 99.5 ? Math.round(bytes) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

/** A duration, which nobody takes for a time of day: 41 s, 3 min 05 s, 12 min, 2 h 05 min, 4 d 7 h. */
export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "unknown";
  const two = (part) => String(part).padStart(2, "0");
  const minutes = Math.floor(Math.round(seconds) / 60), rest = Math.round(seconds) % 60;
  if (minutes < 60) return !minutes ? `${rest} s` : minutes < 10 ? `${minutes} min ${two(rest)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${two(minutes % 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function delay(seconds) {
  if (seconds === null) return "–";
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

export const rate = (number) => (number === null ? "unknown" : number < 100 ? number.toFixed(1) : count(Math.round(number)));

export function pace(number) {
  if (number === null || number >= 1) return number === null ? "unknown" : `${rate(number)} a second`;
  return `${(60 * number).toFixed(1)} a minute`;
}

export function percent(share) {
  const size = Math.abs(share);
  if (share && size < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(size >= 0.0995 || !share ? 0 : 1)} %`;
}

/** Three digits of anything: 0.123, 12.3, 1.23k. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return Math.abs(value) < 999.5 ? value.toPrecision(3) : thousands(value, (scaled) => String(Number(scaled.toPrecision(3))));
}

/** A round number on an axis whose ticks are `step` apart: 0.25, 12, 1.5k, 3M. */
export function onAxis(value, step) {
  const digits = (unit) => Math.min(9, Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)));
  if (Math.abs(value) < 1000) return value.toFixed(digits(1));
  return thousands(value, (scaled, unit) => scaled.toFixed(digits(unit)));
}

function thousands(value, write) {
  const [unit, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([one]) => Math.abs(value) >= 0.9995 * one);
  return `${write(value / unit, unit)}${letter}`;
}

/** The time since a moment, in one unit: 40 s, 5 min, 2 h, 3 d. */
export function ago(seconds) {
  const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([one]) => seconds >= one) ?? [1, "s"];
  return `${Number((seconds / unit).toFixed(1))} ${name}`;
}

/** A peer's id by its end, where peer ids differ. */
export const short = (id) => (id.length > 12 ? `…${id.slice(-11)}` : id);

/** An origin by the beginning of its key, which can be searched for. */
export const key = (origin) => origin.slice(0, 8);
