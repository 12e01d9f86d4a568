// Elements without any HTML in text: names go in as text alone.
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const count = (number, word) =>
  `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

export function thumbnail([image, region], words) {
  return el("img", { src: `thumbnail/${image}/${region}`, alt: words, loading: "lazy" });
}

export function strip(card, number = 8) {
  const words = `region of ${card.name || card.label}`;
  return el("div", { class: "strip" }, ...card.pictures.slice(0, number).map((key) => thumbnail(key, words)));
}

export const key = (letter) => el("kbd", {}, letter);
