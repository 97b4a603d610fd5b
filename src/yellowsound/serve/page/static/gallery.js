// The gallery: arrow keys walk through the clips, and at most two are chosen for the comparison.
const live = document.getElementById("live");

live.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches(".cover")) return;
  const covers = [...live.querySelectorAll(".cover")];
  const next = covers[covers.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
});

live.addEventListener("change", (event) => {
  if (!event.target.checked) return;
  const others = [...live.querySelectorAll("input[name=clip]:checked")].filter((box) => box !== event.target);
  if (others.length > 1) others[0].checked = false;
});
