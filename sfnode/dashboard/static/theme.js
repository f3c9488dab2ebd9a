// Light, dark, or the system's choice; applied before anything is drawn, so that nothing flashes.
"use strict";
(function () {
  const KEY = "sfnode-theme";
  const CHOICES = ["system", "light", "dark"];

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  }

  function apply(choice) {
    document.documentElement.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${choice}`;
  }

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen());
    document.getElementById("theme").addEventListener("click", () => {
      const next = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.theme) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // then the choice lasts as long as the page
      }
      apply(next);
    });
  });
})();
