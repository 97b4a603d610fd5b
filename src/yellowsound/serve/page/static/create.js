// The create form: a picture by drop, paste or file, refusals announced at their fields, Ctrl+Enter sends.
const form = document.getElementById("create");
const input = document.getElementById("input_reference");
const imageFrom = form.elements.image_from;
const figure = document.getElementById("picture");
const shown = document.getElementById("picture-shown");
const drop = document.getElementById("drop");

function show() {
  const file = input.files[0];
  if (shown.src.startsWith("blob:")) URL.revokeObjectURL(shown.src);
  if (file) {
    imageFrom.value = "";
    shown.src = URL.createObjectURL(file);
    document.getElementById("picture-name").textContent = file.name;
  }
  figure.hidden = !file && !imageFrom.value;
  if (figure.hidden) shown.removeAttribute("src");
}

function take(files) {
  const file = [...files].find((one) => one.type.startsWith("image/")) ?? files[0];
  if (!file) return false;
  const chosen = new DataTransfer();
  chosen.items.add(file);
  input.files = chosen.files;
  show();
  return true;
}

input.addEventListener("change", show);
document.getElementById("picture-remove").addEventListener("click", () => {
  input.value = imageFrom.value = "";
  show();
  input.focus();
});

for (const name of ["dragenter", "dragover"])
  document.addEventListener(name, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    drop.classList.add("over");
  });
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  drop.classList.remove("over");
  if (take(event.dataTransfer.files)) event.preventDefault();
});
document.addEventListener("paste", (event) => {
  if (take(event.clipboardData.files)) event.preventDefault();
});

form.elements.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

// After an answer: fields with a refusal are marked, the first one gets the focus.
document.addEventListener("htmx:finally:request", (event) => {
  if (event.target !== form) return;
  let first = null;
  for (const line of form.querySelectorAll(".error")) {
    const field = document.getElementById(line.id.replace("error-", ""));
    if (!line.textContent) field?.removeAttribute("aria-invalid");
    else if (field) {
      field.setAttribute("aria-invalid", "true");
      field.closest("details")?.setAttribute("open", "");
      first ??= field;
    }
  }
  first?.focus();
});
