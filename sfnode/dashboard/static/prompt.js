// The prompt box: one text, two models.

import { ask } from "./api.js";
import { byId, tell } from "./dom.js";

const NOTHING = "(nothing: the likeliest token is the end of the text)";
let asking = false;

async function compare() {
  const prompt = byId("prompt").value;
  if (asking || !prompt) return;
  asking = byId("ask").disabled = true;
  tell("ask-note", "both models are writing…");
  try {
    const tokens = Math.max(1, Math.min(64, Number(byId("tokens").value) || 24));
    const answer = await ask("generate", { prompt, tokens });
    tell("base", answer.base || NOTHING);
    tell("now", answer.now || NOTHING);
    tell("ask-note", `${answer.base === answer.now ? "Both write the same" : "They differ"} at ${answer.known.toLocaleString("en")} updates.`);
  } catch (error) {
    tell("ask-note", error.message);
  }
  asking = byId("ask").disabled = false;
}

export function listenPrompt() {
  byId("ask").addEventListener("click", compare);
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) compare();
  });
}
