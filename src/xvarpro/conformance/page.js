for (const button of document.querySelectorAll(".command button")) {
  const code = button.previousElementSibling;
  button.addEventListener("click", async () => {
    if (!navigator.clipboard) { // a page that is not served securely: selected is all that a script may do
      getSelection().selectAllChildren(code);
      return;
    }
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  });
}
// on paper everything is open
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details:not([open])")) {
    each.open = true;
  }
});
