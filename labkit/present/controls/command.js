// A command line and a button that copies it. Copying is done here, since a browser allows it only in a click.

function render({ model, el }) {
  const row = document.createElement("div");
  row.className = "labkit-command";
  const code = document.createElement("code");
  const button = document.createElement("button");
  button.className = "jupyter-button widget-button lm-Widget";
  button.title = "copy this command";
  row.append(code, button);
  el.append(row);
  const show = () => {
    code.textContent = model.get("command");
    row.style.display = model.get("command") ? "" : "none";
    button.textContent = "Copy as papermill command";
  };
  button.addEventListener("click", async () => {
    button.textContent = (await copied(code)) ? "Copied" : "Press Ctrl-C";
    model.set("copies", model.get("copies") + 1);
    model.save_changes();
    setTimeout(show, 1500);
  });
  model.on("change:command", show);
  show();
  return () => model.off("change:command", show);
}

// Pages that aren't served from this machine or over TLS have no clipboard: then the text is selected.
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
}

export default { render };
