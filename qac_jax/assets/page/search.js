"use strict";
// All texts of passages become text nodes: nothing of an answer is read as HTML. Names of fields may
// be "constructor" or "__proto__": they are keys of maps and of objects without a prototype only.

const PAGE = 10;
const MODES = { hybrid: 0.3, dense: 0, lexical: 1 };
const NAMES = { lexical: "Lexical", dense: "Dense", hybrid: "Hybrid" };
const by = (id) => document.getElementById(id);
const nothing = () => Object.create(null);
const state = { query: "", mode: "hybrid", offset: 0, where: nothing() };
let running = null;
let weight = MODES.hybrid;

function made(tag, settings, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(settings || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const marked = (pieces) => pieces.map(([text, hit]) => (hit ? made("mark", {}, text) : text));

async function post(path, body, signal) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error.message);
  return content;
}

function request(mode, more) {
  const body = { query: state.query, highlight: true, ...more };
  body.hybrid = mode === "hybrid" ? weight : MODES[mode];
  const where = Object.entries(state.where).filter(([, values]) => values.length);
  if (where.length) body.where = Object.fromEntries(where);
  return body;
}

function say(text, bad) {
  by("status").textContent = text;
  by("status").className = bad ? "bad" : "";
}

function shownScore(score) {
  return Math.abs(score) >= 100 ? score.toFixed(1) : score.toFixed(3);
}

function facts(pairs) {
  const list = pairs.map(([name, value]) =>
    made("div", {}, made("dt", {}, name), made("dd", {}, String(value))));
  return made("dl", { class: "facts" }, ...list);
}

const urlOf = (hit) => {
  const url = hit.metadata && hit.metadata.url;
  return typeof url === "string" && /^https?:\/\//.test(url) ? url : "";
};

// Where a passage comes from, once.
function place(hit) {
  const { path, doc } = hit.metadata || {};
  const known = [urlOf(hit), path, doc, hit.title ? hit.id : ""];
  const text = known.find((each) => typeof each === "string" && each);
  return text ? made("p", { class: "place" }, text) : null;
}

function details(hit) {
  const pairs = [["score", shownScore(hit.score)], ["id", hit.id]];
  for (const [part, score] of Object.entries(hit.scores || {})) pairs.push([part, shownScore(score)]);
  for (const [name, value] of Object.entries(hit.metadata || {})) {
    if (value === null || value === "") continue;
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    pairs.push([name, text.length <= 300 ? text : `${text.slice(0, 300)}…`]);
  }
  return made("details", {}, made("summary", {}, "Details"), facts(pairs));
}

function heading(tag, hit) {
  const title = hit.title ? marked(hit.highlights.title) : [hit.id];
  const url = urlOf(hit);
  const link = () => made("a", { href: url, rel: "noreferrer noopener" }, ...title);
  return made(tag, {}, ...(url ? [link()] : title));
}

function hitShown(hit) {
  const text = made("p", {}, ...marked(hit.highlights.snippet));
  const why = made("button", { type: "button", class: "ask", "aria-expanded": "false" }, "Why this hit");
  const article = made("article", { tabindex: "-1" }, heading("h2", hit), place(hit), text);
  const actions = made("div", { class: "actions" }, why);
  if (hit.highlights.snippet.map(([piece]) => piece).join("").length < hit.text.length - 1) {
    const whole = made("button", { type: "button" }, "Whole text");
    whole.addEventListener("click", () => {
      text.textContent = hit.text;
      whole.remove();
    });
    actions.append(whole);
  }
  why.addEventListener("click", () => explain(hit, article, why));
  actions.append(details(hit));
  article.append(actions);
  return article;
}

async function explain(hit, article, button) {
  const open = article.querySelector(".why");
  if (open) {
    open.remove();
    button.setAttribute("aria-expanded", "false");
    return;
  }
  const box = made("div", { class: "why" }, "…");
  article.append(box);
  button.setAttribute("aria-expanded", "true");
  try {
    const found = await post("explain", { query: state.query, id: hit.id });
    const top = Math.max(...found.words.map((each) => each.score), 0.001);
    const words = found.words.map((each) => {
      const bar = made("span", { class: "bar" });
      bar.style.width = `${(5 * each.score) / top}em`;
      return made("li", {}, bar, `${each.word} ${shownScore(each.score)}`);
    });
    const near = found.sentences.map((each) =>
      made("li", {}, `${shownScore(each.score)} `, each.text));
    box.replaceChildren(
      made("h3", {}, `Words in common (BM25 ${shownScore(found.bm25)})`),
      words.length ? made("ul", {}, ...words) : made("p", {}, "none"),
      made("h3", {}, `Nearest sentences (whole passage ${shownScore(found.dense)})`),
      made("ul", {}, ...near),
    );
  } catch (error) {
    box.textContent = error.message;
  }
}

function filtersShown(facets) {
  const aside = by("filters");
  const chosen = Object.entries(state.where).flatMap(([name, values]) => values.map((v) => [name, v]));
  const groups = new Map(Object.entries(facets || {}).map(([name, list]) => [name, [...list]]));
  for (const [name, value] of chosen) {
    if (!groups.has(name)) groups.set(name, []);
    if (!groups.get(name).some(([known]) => known === value)) groups.get(name).push([value, 0]);
  }
  const wide = window.matchMedia("(min-width: 46rem)").matches;
  const inner = [...groups].map(([name, list]) => {
    const values = state.where[name] || [];
    const details = made("details", {}, made("summary", {}, name), ...list.map(([value, count]) => {
      const box = made("input", { type: "checkbox" });
      box.checked = values.includes(value);
      box.addEventListener("change", () => {
        state.where[name] = box.checked ? [...values, value] : values.filter((v) => v !== value);
        state.offset = 0;
        search();
      });
      return made("label", {}, box, made("span", {}, String(value)), made("span", {}, String(count)));
    }));
    details.open = values.length > 0 || wide;
    return details;
  });
  const whole = made("details", {}, made("summary", {}, "Filters"), ...inner);
  whole.open = chosen.length > 0;
  aside.replaceChildren(...(wide ? inner : [whole]));
  aside.hidden = !groups.size;
}

function trioShown(answers) {
  const ranks = new Map();
  for (const [mode, answer] of Object.entries(answers)) {
    answer.hits.forEach((hit, at) => {
      ranks.set(hit.id, [...(ranks.get(hit.id) || []), [mode, at + 1]]);
    });
  }
  const columns = Object.entries(answers).map(([mode, answer]) => {
    const hits = answer.hits.map((hit) => {
      const others = ranks.get(hit.id).filter(([other]) => other !== mode);
      const shown = others.map(([other, rank]) => [`${other} rank`, rank]);
      return made("article", { tabindex: "-1" }, heading("h3", hit),
        made("p", {}, ...marked(hit.highlights.snippet)),
        facts([["score", shownScore(hit.score)], ...shown]));
    });
    const none = made("p", {}, "no passage matches");
    return made("section", {}, made("h2", {}, NAMES[mode]), ...(hits.length ? hits : [none]));
  });
  by("results").replaceChildren(made("div", { class: "trio" }, ...columns));
}

async function search() {
  if (running) running.abort();
  const mine = (running = new AbortController());
  remember();
  by("pages").hidden = true;
  if (!state.query.trim()) {
    by("results").replaceChildren();
    filtersShown({});
    say("");
    return;
  }
  say("Searching …");
  try {
    if (state.mode === "all") {
      const modes = ["lexical", "dense", "hybrid"];
      const answers = await Promise.all(modes.map((mode) =>
        post("search", request(mode, { k: PAGE, facets: mode === "hybrid" }), mine.signal)));
      trioShown(Object.fromEntries(modes.map((mode, place) => [mode, answers[place]])));
      filtersShown(answers[2].facets);
      say(`${answers[2].passages.toLocaleString("en")} passages searched in three ways`);
      return;
    }
    const body = request(state.mode, { k: PAGE + 1, offset: state.offset, facets: true });
    const answer = await post("search", body, mine.signal);
    const hits = answer.hits.slice(0, PAGE);
    by("results").replaceChildren(...hits.map(hitShown));
    filtersShown(answer.facets);
    const shown = hits.length
      ? `Hits ${state.offset + 1} to ${state.offset + hits.length}`
      : "No passage matches";
    // As the search on the command line: live/snapshot.py.
    const found = answer.likely < 0.1 ? "Nothing here seems to answer. " + shown : shown;
    say(`${found}, ${answer.passages.toLocaleString("en")} passages, ${Math.round(answer.took_ms)} ms`);
    by("previous").disabled = !state.offset;
    by("next").disabled = answer.hits.length <= PAGE;
    by("page").textContent = `Page ${state.offset / PAGE + 1}`;
    by("pages").hidden = by("previous").disabled && by("next").disabled;
  } catch (error) {
    if (error.name !== "AbortError") say(error.message || "The server does not answer", true);
  }
}

function remember() {
  const parts = new URLSearchParams();
  if (state.query) parts.set("q", state.query);
  if (state.mode !== "hybrid") parts.set("mode", state.mode);
  if (state.offset) parts.set("offset", state.offset);
  if (Object.values(state.where).some((values) => values.length)) {
    parts.set("where", JSON.stringify(state.where));
  }
  history.replaceState(null, "", parts.toString() ? `?${parts}` : location.pathname);
}

function recall() {
  const parts = new URLSearchParams(location.search);
  state.query = parts.get("q") || "";
  state.mode = [...Object.keys(MODES), "all"].find((mode) => mode === parts.get("mode")) || "hybrid";
  state.offset = Math.max(0, Math.floor(Number(parts.get("offset")) / PAGE) * PAGE) || 0;
  try {
    const where = JSON.parse(parts.get("where")) || {};
    for (const [name, values] of Object.entries(where)) {
      if (Array.isArray(values)) state.where[name] = values;
    }
  } catch {
    // A link that was cut short: without filters.
  }
  by("query").value = state.query;
  document.querySelector(`#modes input[value="${state.mode}"]`).checked = true;
}

function turn(pages) {
  state.offset = Math.max(0, state.offset + pages * PAGE);
  search().then(() => by("results").focus());
}

function step(places) {
  const hits = [...document.querySelectorAll("article")];
  const now = hits.indexOf(document.activeElement.closest("article"));
  const next = hits[Math.min(Math.max(now + places, 0), hits.length - 1)];
  if (next) next.focus();
}

const KEYS = {
  "/": () => by("query").select(),
  j: () => step(1),
  k: () => step(-1),
  n: () => by("pages").hidden || by("next").disabled || turn(1),
  p: () => by("pages").hidden || by("previous").disabled || turn(-1),
  w: () => {
    const article = document.activeElement.closest("article") || document.querySelector("article");
    const button = article && article.querySelector(".ask");
    if (button) button.click();
  },
};

document.addEventListener("keydown", (event) => {
  const typing = document.activeElement.matches("input[type=search]");
  if (event.key === "Escape" && typing) document.activeElement.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});
by("form").addEventListener("submit", (event) => {
  event.preventDefault();
  Object.assign(state, { query: by("query").value, offset: 0, where: nothing() });
  search();
});
by("modes").addEventListener("change", (event) => {
  Object.assign(state, { mode: event.target.value, offset: 0 });
  search();
});
by("previous").addEventListener("click", () => turn(-1));
by("next").addEventListener("click", () => turn(1));
async function begin() {
  recall();
  if (!state.query) by("query").focus();
  try {
    const health = await (await fetch("health")).json();
    // An index of vectors alone has the weight 0, where there would be nothing to fuse.
    if (health.weight > 0 && health.weight < 1) weight = health.weight;
  } catch {
    // The search says what is wrong.
  }
  search();
}

begin();
