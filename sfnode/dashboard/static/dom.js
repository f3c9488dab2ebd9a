// Small things that every part of the page uses. Text from the network becomes text, never markup.

export const byId = (id) => document.getElementById(id);

/** Write text into an element, if it differs: screen readers then hear changes only. */
export function tell(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** The same for words with a mood: good, warn, bad or neutral. */
export function say(id, [text, mood]) {
  tell(id, text.replaceAll(" %", "\u00a0%")); // a number and its sign stay on one line
  for (const one of ["good", "warn", "bad"]) byId(id).classList.toggle(one, one === mood);
}

export function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  if (className) element.className = className;
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

/** A name, which anybody may choose, and beside it always the key or id, which nobody can choose. */
export function named(name, id, whole) {
  const both = make("span", "", "named");
  if (name) both.append(make("bdi", name, "name"), " ");
  both.append(make("span", id, "mono"));
  both.title = whole;
  return both;
}
