// Requests to the node. An error answer becomes an exception with the node's own words.

const PATIENCE = 15000; // milliseconds for an answer that needs no model

export class NodeError extends Error {
  constructor(message, gone) {
    super(message);
    this.gone = gone;
  }
}

export async function ask(path, body) {
  const options = body === undefined ? { signal: AbortSignal.timeout(PATIENCE) } : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(`api/${path}`, options);
  } catch {
    throw new NodeError("the dashboard does not answer", true);
  }
  const text = await response.text();
  if (response.ok) return JSON.parse(text, printable);
  let reason = text.trim();
  try {
    reason = JSON.parse(text, printable).error;
  } catch {
    // not from the node itself
  }
  throw new NodeError(reason, response.status === 503 || response.status === 401);
}

/** A value of an answer; in texts, which may be a stranger's, what shows nothing or turns the writing is escaped. */
function printable(_key, value) {
  if (typeof value !== "string") return value;
  const escaped = (letter) => `\\u${letter.codePointAt(0).toString(16).padStart(4, "0")}`;
  return value.replace(/[\p{C}\u2028\u2029]/gu, (letter) => letter === "\n" ? letter : escaped(letter));
}

/** Run `job`, which never fails, now and again `seconds` after each end, while the page is visible. */
export function repeat(job, seconds) {
  let waiting;
  const turn = async () => {
    clearTimeout(waiting);
    if (!document.hidden) await job();
    clearTimeout(waiting);
    waiting = setTimeout(turn, seconds * 1000);
  };
  turn();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
}
