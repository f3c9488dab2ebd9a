// Asks the node. An answer that is an error becomes an exception with the node's own words.

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
  if (response.ok) return response.json();
  const text = await response.text();
  let reason = text.trim();
  try {
    reason = JSON.parse(text).error;
  } catch {
    // not from the node itself
  }
  throw new NodeError(reason, response.status === 503 || response.status === 401);
}

/** Do `job`, which does not fail, now and again `seconds` after it has ended, while somebody looks at the page. */
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
