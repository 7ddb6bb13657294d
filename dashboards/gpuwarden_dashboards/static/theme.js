// Sets light or dark: the system's, or the reader's choice, which this browser keeps.

const KEY = "gpuwarden-theme";
const button = document.querySelector("#theme");
const NEXT = { "": "dark", dark: "light", light: "" };
const NAMES = { "": "theme: system", dark: "theme: dark", light: "theme: light" };
const SIGNS = { "": "\u25d0", dark: "\u263e", light: "\u2600" };

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  button.textContent = SIGNS[theme];
  button.title = NAMES[theme];
  button.setAttribute("aria-label", NAMES[theme]);
  dispatchEvent(new Event("themechange"));
}

let chosen = localStorage.getItem(KEY) ?? "";
if (!(chosen in NEXT)) chosen = "";
apply(chosen);
button.hidden = false;
button.addEventListener("click", () => {
  chosen = NEXT[chosen];
  localStorage.setItem(KEY, chosen);
  apply(chosen);
});
