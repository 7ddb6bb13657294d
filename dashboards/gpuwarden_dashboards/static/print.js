// Prints the page on a click.

const button = document.querySelector("#print");
button.hidden = false;
button.addEventListener("click", () => print());
