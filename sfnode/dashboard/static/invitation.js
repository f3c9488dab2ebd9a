// The link with which others join, and its QR code; empty while this node has no address for it.

import { ask } from "./api.js";
import { byId, tell } from "./dom.js";

export async function showInvitation() {
  const found = await ask("invitation");
  byId("invite-section").hidden = !found.command;
  if (!found.command || byId("invite-command").textContent === found.command) return;
  tell("invite-command", found.command);
  tell("invite-note", found.note);
  byId("invite-code").src = `api/invitation.svg?${encodeURIComponent(found.command)}`;
}

export function listenInvitation() {
  byId("invite-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(byId("invite-command").textContent);
      tell("invite-note", "Copied.");
    } catch {
      getSelection().selectAllChildren(byId("invite-command")); // a page without https may not copy by itself
      tell("invite-note", "Selected: copy it with Ctrl + C.");
    }
  });
}
