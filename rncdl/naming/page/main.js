import { showKeys } from "./dialogs.js";
import { aside, grid } from "./grid.js";
import { earlier, history } from "./lists.js";
import { map } from "./map.js";
import { place } from "./place.js";
import { oneByOne } from "./queue.js";
import { clusters, decide, listen, load, openEarlier, poll, say, state } from "./state.js";

const POLL_MS = 2000;
const VIEWS = { "": grid, queue: oneByOne, map, earlier, aside, history, place };
const main = document.getElementById("main");

function drawHead() {
  for (const kind of ["undo", "redo"]) {
    const button = document.getElementById(kind);
    button.disabled = !state[kind];
    button.title = state[kind] ? state[kind].said : "";
  }
  const all = clusters();
  const looked = all.filter((card) => card.looked_at).length;
  Object.assign(document.getElementById("progress"), { value: looked, max: Math.max(1, all.length) });
  document.getElementById("looked").textContent = `${looked} of ${all.length} looked at`;
  const before = document.getElementById("earlier");
  before.hidden = !state.earlier.size;
  before.textContent = `From before (${openEarlier().length})`;
}

// What somebody is typing, and where the keyboard is, stays when the page is drawn anew.
function rememberFocus() {
  const focused = document.activeElement;
  if (!main.contains(focused)) return () => {};
  const { id, name, ariaLabel, value, selectionStart, selectionEnd } = focused;
  const wanted = id || name || ariaLabel;
  return () => {
    const same = wanted && [...main.querySelectorAll("input, button, select, a, circle")].find((one) =>
      one.id === id && one.name === name && one.ariaLabel === ariaLabel);
    if (!same) { main.focus({ preventScroll: true }); return; }
    if (same.tagName === "INPUT" && same.type !== "checkbox") same.value = value;
    same.focus({ preventScroll: true });
    if (selectionStart !== null && selectionStart !== undefined) same.setSelectionRange?.(selectionStart, selectionEnd);
  };
}

async function draw() {
  const restoreFocus = rememberFocus();
  drawHead();
  const [, view = "", id] = location.hash.split("/");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    await (VIEWS[view] || grid)(main, Number(id));
    main.dataset.shown = location.hash;
    restoreFocus();
  } catch (error) { say(error.message); }
}

async function step(kind) {
  if (state[kind]) await decide(kind, { expected: state[kind].id });
}

function press(key) {
  const wanted = main.querySelector(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);
  if (wanted?.tagName === "INPUT") wanted.focus();
  else wanted?.click();
  return wanted !== null;
}

document.getElementById("undo").onclick = () => step("undo");
document.getElementById("redo").onclick = () => step("redo");
document.getElementById("help").onclick = showKeys;
document.getElementById("skip").onclick = () => main.focus();
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || document.getElementById("dialog").open) return;
  const key = event.key.toLowerCase();
  const hasModifier = event.ctrlKey || event.metaKey;
  if (hasModifier && key === "z") step(event.shiftKey ? "redo" : "undo");
  else if (hasModifier || event.altKey || key.length > 1 || key === " ") return;
  else if (key === "?") showKeys();
  else if (!press(key)) return;
  event.preventDefault();
});
window.addEventListener("hashchange", async () => {
  say("");
  await draw();
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
listen(draw);
try {
  await load();
  document.title = state.title;
  await draw();
  setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
} catch (error) { say(error.message); }
