// Clusters by what they look like: near each other, alike.
import { facts, heading } from "./cards.js";
import { nameField } from "./completion.js";
import { giveOneName } from "./dialogs.js";
import { button, el, strip, svg } from "./elements.js";
import { clusters, decide, state } from "./state.js";

// In units of about a pixel, so that dots and names stay readable on a phone.
const WIDE = { width: 1000, height: 620, edge: 45 };
const NARROW = { width: 380, height: 520, edge: 30 };
const NARROW_PX = 640;
let size = WIDE;
const SHOWN = 24;
const LABELLED = 60;
const PICTURED = 150; // more clusters than this are dots without a picture
const chosen = new Set();
let current = null; // the dot that the keyboard is at
let redraw = () => {}; // of what is on the page now, as a decision draws it anew
let leaving = new AbortController();

const placed = () => clusters().filter((card) => card.position).sort((a, b) => b.size - a.size);
const at = ({ position: [x, y] }) => [size.edge + x * (size.width - 2 * size.edge), size.height - size.edge - y * (size.height - 2 * size.edge)];

function kindOf(card) {
  if (card.ignored) return "ignored";
  if (!card.name) return "unnamed";
  return state.known.includes(card.name) ? "known" : "named";
}

function radius(card, cards) {
  const [least, most] = cards.length > PICTURED ? [4, 14] : size === NARROW ? [12, 22] : [15, 32];
  return least + (most - least) * Math.sqrt(card.size / cards[0].size);
}

function dot(card, cards) {
  const [cx, cy] = at(card);
  const r = radius(card, cards);
  const inner = r - 2;
  const picture = cards.length > PICTURED || !card.pictures.length ? null
    : svg("image", { href: `thumbnail/${card.pictures[0].join("/")}`, x: cx - inner, y: cy - inner, width: 2 * inner, height: 2 * inner, "aria-hidden": "true" });
  const label = card.name && !card.ignored ? svg("text", { x: cx, y: cy - r - 4, "aria-hidden": "true" }, card.name) : null;
  const circle = svg("circle", { class: `dot ${kindOf(card)}`, cx, cy, r, role: "checkbox", "data-cluster": card.id, "aria-label": `${card.name || card.label}, ${facts(card).textContent}` },
    svg("title", {}, card.name || card.label));
  return { circle, picture, label };
}

// The nearest dot that lies rather in that direction than aside of it.
function neighbour(card, [dx, dy]) {
  const [x, y] = at(card);
  const reach = (other) => {
    const [ox, oy] = [at(other)[0] - x, at(other)[1] - y];
    const along = ox * dx + oy * dy;
    return along > Math.abs(ox * dy - oy * dx) && along > 0 ? Math.hypot(ox, oy) : Infinity;
  };
  return placed().reduce((best, other) => (reach(other) < reach(best) ? other : best), card);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function panel() {
  const cards = [...chosen].map((id) => state.cards.get(id)).filter((card) => card?.size);
  const ids = cards.map((card) => card.id);
  const clear = () => { chosen.clear(); redraw(); };
  if (!cards.length) return [el("p", { class: "soft" }, "Click clusters, or draw a frame around some, to see them and decide about all at once.")];
  const { input, field } = nameField({ name: "one-name", placeholder: "What are they?", "aria-label": "Name of the selected clusters" });
  const form = el("form", { onsubmit: async (event) => {
    event.preventDefault();
    if (await giveOneName(cards, input.value)) clear();
  } }, field, el("button", {}, cards.length === 1 ? "Name" : "Make one class"));
  return [el("div", { class: "actions" }, el("strong", { role: "status" }, `${cards.length} selected`), form,
    button("Ignore", async () => { if (await decide("ignore", { clusters: ids })) clear(); }, { key: "i", id: "ignore-all" }), button("Clear", clear, { id: "clear" })),
  el("div", { class: "cards" }, cards.slice(0, SHOWN).map((card) => el("article", { class: "card" }, heading(card), strip(card), facts(card)))),
  cards.length > SHOWN ? el("p", { class: "soft" }, `and ${cards.length - SHOWN} more`) : ""];
}

// Dragging draws a frame; what lies in it is selected, with what was selected before.
function drawFrame(map) {
  const frame = svg("rect", { class: "frame", hidden: true });
  let start = null;
  const point = (event) => {
    const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    return [p.x, p.y];
  };
  const corners = (event) => {
    const [x, y] = point(event);
    return { x: Math.min(x, start[0]), y: Math.min(y, start[1]), width: Math.abs(x - start[0]), height: Math.abs(y - start[1]) };
  };
  map.addEventListener("pointerdown", (event) => { if (event.pointerType !== "touch" && event.button === 0) start = point(event); });
  map.addEventListener("pointermove", (event) => {
    if (!start) return;
    for (const [key, value] of Object.entries(corners(event))) frame.setAttribute(key, value);
    frame.removeAttribute("hidden");
  });
  window.addEventListener("pointerup", (event) => {
    if (!start || !map.isConnected) { start = null; return; }
    const { x, y, width, height } = corners(event);
    start = null;
    frame.setAttribute("hidden", "");
    if (Math.max(width, height) < 4) return;
    for (const card of placed()) {
      const [cx, cy] = at(card);
      if (cx >= x && cx <= x + width && cy >= y && cy <= y + height) chosen.add(card.id);
    }
    redraw();
  }, { signal: leaving.signal });
  return frame;
}

export function map(main) {
  leaving.abort();
  leaving = new AbortController();
  size = main.clientWidth < NARROW_PX ? NARROW : WIDE;
  const cards = placed();
  const drawn = cards.map((card) => dot(card, cards));
  const dots = new Map(cards.map((card, i) => [card.id, drawn[i].circle]));
  if (!dots.has(current)) current = cards[0]?.id;
  const side = el("section", { id: "selected", "aria-label": "Selected clusters" });
  const drawing = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, class: "map", role: "group", "aria-label": "Map of clusters: arrows go to the next, Space selects, Enter opens" }, drawn.map(({ circle, picture }) => [circle, picture]), drawn.slice(0, LABELLED).map(({ label }) => label));
  redraw = () => {
    for (const [id, one] of dots) {
      one.setAttribute("aria-checked", String(chosen.has(id)));
      one.setAttribute("tabindex", id === current ? 0 : -1);
    }
    side.replaceChildren(...panel());
  };
  const toggle = (id) => { if (!chosen.delete(id)) chosen.add(id); redraw(); };
  const idOf = (event) => (event.target.dataset.cluster === undefined ? null : Number(event.target.dataset.cluster));
  drawing.addEventListener("click", (event) => { const id = idOf(event); if (id !== null) { current = id; toggle(id); } });
  drawing.addEventListener("keydown", (event) => {
    const id = idOf(event);
    if (id === null) return;
    if (ARROWS[event.key]) { current = neighbour(state.cards.get(id), ARROWS[event.key]).id; redraw(); dots.get(current).focus(); }
    else if (event.key === " ") toggle(id);
    else if (event.key === "Enter") location.hash = `#/place/${id}`;
    else return;
    event.preventDefault();
  });
  drawing.append(drawFrame(drawing));
  main.replaceChildren(el("div", { class: "mapped" }, drawing,
    el("p", { class: "legend soft" }, ["unnamed", "named", "known", "ignored"].map((kind) => [el("span", {}, el("i", { class: kind }), ` ${kind === "known" ? "a known class" : kind}`), " "]),
      "The larger, the more regions. Near each other: they look alike.")), side);
  redraw();
}
