// Prints the page on a click.

const button = document.querySelector("#print");
if (button) button.hidden = false; // it is absent where the page has no table
button?.addEventListener("click", () => print());
