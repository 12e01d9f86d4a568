import { el } from "./elements.js";
import { clusters, decide, listen, load, names, poll, say, state } from "./state.js";
import { aside, grid, history, oneByOne, place, queueKey } from "./views.js";

const POLL_MS = 2000;
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
  document.getElementById("names").replaceChildren(...names().map((value) => el("option", { value })));
}

// What somebody is typing stays when the page is drawn anew.
function rememberTyping() {
  const { ariaLabel, name, value } = document.activeElement;
  return () => {
    if (!ariaLabel && !name) return;
    const same = [...main.querySelectorAll("input")].find((input) => input.name === name && input.ariaLabel === ariaLabel);
    if (!same) return;
    if (same.type !== "checkbox") same.value = value;
    same.focus();
  };
}

async function draw() {
  const restoreTyping = rememberTyping();
  drawHead();
  const [, view, id] = location.hash.split("/");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${view || ""}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (view === "queue") oneByOne(main);
    else if (view === "place") await place(main, Number(id));
    else if (view === "aside") aside(main);
    else if (view === "history") await history(main);
    else grid(main);
    restoreTyping();
  } catch (error) { say(error.message); }
}

async function step(kind) {
  if (state[kind]) await decide(kind, { expected: state[kind].id });
}

document.getElementById("undo").onclick = () => step("undo");
document.getElementById("redo").onclick = () => step("redo");
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || document.getElementById("dialog").open) return;
  const letter = event.key.toLowerCase();
  if ((event.ctrlKey || event.metaKey) && letter === "z") {
    event.preventDefault();
    step(event.shiftKey ? "redo" : "undo");
  } else if (!event.ctrlKey && !event.metaKey && !event.altKey && location.hash === "#/queue" && /^[a-z1-9]$/.test(letter)) {
    event.preventDefault();
    queueKey(letter);
  }
});
window.addEventListener("hashchange", () => { say(""); draw(); main.focus(); });
listen(draw);
try {
  await load();
  document.title = state.title;
  await draw();
  setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
} catch (error) { say(error.message); }
