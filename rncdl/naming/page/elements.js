// Elements without any HTML in text: names go in as text alone.
function build(made, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

export const el = (tag, properties = {}, ...children) =>
  build(document.createElement(tag), properties, children);
export const svg = (tag, properties = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

// A button; with a key, that key presses it wherever the page shows it.
export function button(words, onclick, { key, ...properties } = {}) {
  const shown = key ? [words, " ", el("kbd", { "aria-hidden": "true" }, key)] : [words];
  return el("button", { type: "button", onclick, "data-key": key, "aria-keyshortcuts": key, ...properties }, shown);
}

export const count = (number, word) =>
  `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

export function thumbnail([image, region], words) {
  return el("img", { src: `thumbnail/${image}/${region}`, alt: words, loading: "lazy", width: 112, height: 112 });
}

export function strip(card, number = 8) {
  const words = `region of ${card.name || card.label}`;
  return el("div", { class: "strip" }, card.pictures.slice(0, number).map((key) => thumbnail(key, words)));
}
