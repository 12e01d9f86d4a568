// What the server has told, and how it is told of decisions.
export const state = {
  version: 0, cards: new Map(), known: [], undo: null, redo: null, title: "",
  earlier: new Map(), // cluster -> what was decided about its regions before
};

let onNews = () => {};
export const listen = (listener) => { onNews = listener; };

export function say(text) { document.getElementById("message").textContent = text; }

export async function ask(path, options) {
  const answer = await fetch(path, options);
  const found = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw Object.assign(new Error(found.error), { status: answer.status });
  return found;
}

function take(news) {
  for (const card of news.cards) state.cards.set(card.id, card);
  // Answers may overtake each other; what is newest stays.
  if (news.version < state.version) return;
  Object.assign(state, { version: news.version, undo: news.undo, redo: news.redo });
}

export async function load() {
  const found = await ask("api/state");
  Object.assign(state, { known: found.known, title: found.title });
  take(found);
  const { suggestions } = await ask("api/earlier");
  state.earlier = new Map(suggestions.map((one) => [one.cluster, one]));
}

export async function poll() {
  try {
    const news = await ask(`api/changes?since=${state.version}`);
    const isNew = news.version > state.version;
    take(news);
    if (isNew) onNews();
  } catch { say("The server does not answer; start `rncdl name` again. Nothing is lost."); }
}

// True once it is decided; false where it was refused, with the reason on the page.
export async function decide(kind, decision = {}) {
  try {
    take(await ask(`api/decide/${kind}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ seen: state.version, ...decision }),
    }));
    say("");
    onNews();
    return true;
  } catch (error) {
    if (error.status === 409) await poll();
    say(error.message);
    return false;
  }
}

export const clusters = () =>
  [...state.cards.values()].filter((card) => card.id >= 0 && card.size > 0);
// Names are the same whatever their upper and lower case, surrounding and doubled space.
export const plain = (text) => text.trim().replace(/\s+/g, " ").toLowerCase();
export const clusterLabelled = (label) => clusters().find((card) => card.label === plain(label));
export const classOf = (name) => clusters().filter((card) => card.name === name && !card.ignored);
export const knownCard = (name) =>
  [...state.cards.values()].find((card) => card.id < -1 && card.label === name);
// What earlier decisions suggest for clusters about which nobody has decided anything yet.
export const openEarlier = () =>
  [...state.earlier.values()].filter((one) => !state.cards.get(one.cluster).looked_at);
// Classes that were clusters without a name: nobody is offered their numbers as names.
export const isFound = (name) => /^found\d*_\d+$/i.test(name);
export function names() {
  const given = clusters().filter((card) => card.name && !card.ignored).map((card) => card.name);
  return [...new Set([...given, ...state.known])].filter((name) => !isFound(name)).sort((a, b) => a.localeCompare(b));
}
