// A chosen file is copied into a text field, so that the form works in the same way with and without a script.
for (const field of document.querySelectorAll("input[type=file][data-fills]")) {
  field.addEventListener("change", async () => {
    const [file] = field.files;
    if (file) document.getElementById(field.dataset.fills).value = await file.text();
  });
}
