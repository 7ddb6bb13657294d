// Copies messages to owners.

for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break; // only pages over TLS or of this host have it
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy message"), 1500);
  });
}
