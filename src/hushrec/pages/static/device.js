// The person's page. It talks to `hushrec device ui` on this machine and to nobody else.

import { confirm, count, fill, find, make, percent, plural, say, setBar } from "./page.js";

const POLL_MS = 1000;
const SEARCH_MS = 120;
let state = null;
let levels = null;
let shownChanges = -1;
let known = null; // items of the last recommendations, to mark new ones
let searching = 0;

// The address carries the token after #, where no server sees it; then the tab keeps it.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
sessionStorage.setItem("token", token);
if (location.hash) history.replaceState(null, "", "/");

async function ask(path, body) {
  const options = { headers: { "Hushrec-Token": token } };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(`/api/${path}`, options);
  if (reply.ok) return reply.status === 204 ? null : reply.json();
  const said = await reply.json().catch(() => ({}));
  throw new Error(typeof said.detail === "string" ? said.detail : `refused (${reply.status}).`);
}

// Asking again and again ----------------------------------------------------------------------------------------------

async function poll() {
  try {
    show(await ask("state"));
    find("#lost").hidden = true;
    if (state.changes !== shownChanges) {
      shownChanges = state.changes;
      await Promise.all([showRatings(), showRecommendations(), showSent(), showLevels()]);
    }
  } catch (error) {
    const away = error instanceof TypeError;
    say("#lost", away ? "The page’s own program has stopped. Start `hushrec device ui` again." : error.message);
    find("#lost").hidden = false;
    say("#state", "Not connected");
    find("#state").className = "pill bad";
  }
  if (!document.body.dataset.over) setTimeout(poll, POLL_MS);
}

function show(news) {
  state = news;
  find("#join-card").hidden = state.joined;
  find("#joined").hidden = !state.joined;
  const on = state.part.on;
  say("#state", !state.joined ? "Not joined" : on ? "Taking part" : "Offline");
  find("#state").className = on ? "pill" : "pill warm";
  say("#part-words", state.part.words);
  find(".part").classList.toggle("trouble", state.part.trouble);
  say("#part", on ? "Stop" : "Take part");
  find("#part").disabled = !on && state.n_ratings === 0;
  const advice = state.ledger.permanent_draws ? "" : state.n_ratings === 0 ? " Rate some films first." : " Rate first: your first round fixes which ratings stand behind what is sent.";
  say("#part-note", state.rounds ? `Round ${count(state.round)} of ${count(state.rounds)} was the last this device answered. Server: ${state.server}.${advice}` : "");
  showLedger();
}

function showLedger() {
  const ledger = state.ledger;
  fill("#ledger", `ε ${Number(ledger.spent.toPrecision(3))}`, make("small", {}, ` of ${ledger.limit}`));
  setBar("#ledger-bar", ledger.spent / ledger.limit, `ε ${ledger.spent} of ${ledger.limit}`);
  say("#ledger-note", `Spent on ${ledger.unit}. ${plural(ledger.rounds, "round", "rounds")}, ${plural(ledger.permanent_draws, "draw", "draws")} of permanent bits. When the bar is full, further rounds of the same draw cost nothing more.`);
  if (find("#not-covered").childElementCount !== ledger.not_covered.length) {
    fill("#not-covered", ...ledger.not_covered.map((text) => make("li", {}, text)));
  }
  find("#allow-row").hidden = !(state.part.trouble && state.part.words.includes("budget"));
  say("#allow", `Allow another draw (ε ${state.epsilon_p} more)`);
}

// Ratings -------------------------------------------------------------------------------------------------------------

function scaleValues() {
  const [low, high] = state.scale;
  const steps = Number.isInteger(high - low) && high - low <= 9 ? high - low : 4;
  return Array.from({ length: steps + 1 }, (_, n) => low + (n * (high - low)) / steps);
}

function stars(item, place) {
  const name = `${place}-${item.item}`;
  const set = make("fieldset", { className: "stars" }, make("legend", { className: "hidden" }, `Your rating of ${item.title}`));
  for (const value of scaleValues()) {
    const input = make("input", { type: "radio", name, value, checked: value === item.rating });
    input.setAttribute("aria-label", `${Number(value.toFixed(2))}`);
    input.addEventListener("change", () => rate(item.item, value));
    set.append(make("label", {}, input, "★"));
  }
  return set;
}

// One after the other: of several quick presses the last must be the one that stands.
let saved = Promise.resolve();

function rate(item, value) {
  saved = saved.then(() => save(item, value));
  return saved;
}

async function save(item, value) {
  try {
    await ask("rate", { item, value });
  } catch (error) {
    say("#found", error.message);
  }
}

async function search() {
  const turn = ++searching;
  const text = find("#search").value;
  const found = await ask(`search?text=${encodeURIComponent(text)}`);
  if (turn !== searching) return; // a later one is under way
  say("#found", `${plural(found.count, "title", "titles")}${found.count > found.items.length ? `, the first ${found.items.length} are shown` : ""}`);
  fill("#results", ...found.items.map((item) => make("li", {}, make("span", { className: "title" }, item.title), stars(item, "found"))));
}

async function showRatings() {
  const { items } = await ask("ratings");
  say("#own-head", `Your ratings (${count(items.length)})`);
  if (find("#ratings").contains(document.activeElement)) return; // do not move what has the focus
  fill("#ratings", ...items.map((item) => {
    const row = stars(item, "own");
    const remove = make("button", { type: "button", className: "plain" }, "Remove");
    remove.setAttribute("aria-label", `Remove the rating of ${item.title}`);
    remove.addEventListener("click", () => { remove.blur(); rate(item.item, null); });
    row.append(remove);
    return make("li", {}, make("span", { className: "title" }, item.title), row);
  }));
  if (find("#results").childElementCount === 0) search();
}

async function showRecommendations() {
  find("#nothing-yet").hidden = state.has_vectors && state.n_ratings > 0;
  if (!find("#nothing-yet").hidden) return;
  const { items } = await ask("recommendations");
  fill("#recommendations", ...items.map((item) => {
    const title = make("span", { className: "title" }, item.title);
    if (known && !known.has(item.item)) title.append(make("span", { className: "new" }, "new"));
    const reasons = item.reasons.map((reason) => `${reason.title}, your ${reason.rating}`).join("; ");
    const why = make("span", { className: "why" }, reasons ? `Because it is like ${reasons}` : "Nothing you liked is like it; others shaped this");
    const predicted = Math.min(state.scale[1], Math.max(state.scale[0], item.predicted)).toFixed(1);
    const score = make("span", { className: "score number" }, predicted);
    score.setAttribute("aria-label", `predicted ${predicted}`);
    score.setAttribute("role", "img");
    return make("li", {}, title, score, why);
  }));
  known = new Set(items.map((item) => item.item));
}

// The budget ----------------------------------------------------------------------------------------------------------

async function showLevels() {
  const first = levels === null || levels.levels.length === 0;
  levels = await ask("levels");
  if (levels.levels.length === 0) return;
  find("#level").max = levels.levels.length - 1;
  fill("#marks", ...levels.levels.map((level) => make("span", {}, level.name)));
  if (first) find("#level").value = Math.max(0, levels.levels.findIndex((level) => level.epsilon_i === state.level));
  showLevel();
}

function showLevel() {
  const level = levels.levels[Number(find("#level").value)];
  const current = level.epsilon_i === state.level;
  say("#level-name", `${level.name}, ε ${level.epsilon} over all rounds${current ? " (in use)" : ""}`);
  find("#level").setAttribute("aria-valuetext", `${level.name}, ε ${level.epsilon}`);
  const accuracy = levels.accuracy;
  const words = [
    `Items sent each round: about ${level.items_sent.toFixed(1)}; really rated among them: ${level.real.toFixed(1)} (by pure chance ${level.by_chance.toFixed(1)}).`,
    `If the server believed with ${percent(level.before)} that you rated an item: from which items are sent it can get to ${percent(level.after)} at most, and to ${percent(level.never)} at least, over all rounds.`,
    `Expected accuracy: off by ${level.rmse} stars (RMSE); without privacy ${accuracy.not_private}, for a model that knows no taste ${accuracy.without_taste}. Source: ${accuracy.source}.`,
    "No level hides the numbers sent with the items: see below what they give away.",
  ];
  fill("#level-words", ...words.map((text) => make("li", {}, text)));
  find("#level-set").disabled = current || !state.can_change_level;
  say("#level-said", state.can_change_level ? "" : "Fixed since your first round: your permanent bits were drawn with it. A new draw would be paid again.");
}

// What left -----------------------------------------------------------------------------------------------------------

async function showSent() {
  const { last } = await ask("sent");
  find("#sent").hidden = last === null;
  find("#sent-none").hidden = last !== null;
  if (last === null) return;
  const numbers = last.rows.length * (last.rows[0]?.numbers.length ?? 0);
  say("#sent-words", `Round ${count(last.round)}: ${plural(last.rows.length, "item", "items")} with ${count(numbers)} numbers, ${count(last.bytes)} bytes.${last.waiting ? " Still waiting to be sent." : ""} Of the items, ${last.n_rated} are ones you rated; chance chose them and the others.`);
  fill("#sent-read", ...[
    `The direction of your taste: cosine ${last.cosine.toFixed(2)} with the true one (1 is exact, near 0 is a guess).`,
    `What you would like: ranking films by it, ${last.same_top} of your ${last.of_top} best are among its ${last.of_top} best.`,
    `Which items you rated: ${plural(last.n_stands_out, "item stands", "items stand")} out, and ${plural(last.n_right, "of them is", "of them are")} really yours.`,
    "The attack is the audit’s, run here on your own upload. One round only: a server that keeps all of them knows more.",
  ].map((text) => make("li", {}, text)));
  const rows = [...last.rows].sort((a, b) => Math.abs(b.amplitude) - Math.abs(a.amplitude));
  fill("#sent-rows", ...rows.map((row) => {
    const text = row.numbers.map((value) => value.toPrecision(3)).join(", ");
    const cell = row.numbers.length <= 4 ? make("code", {}, text)
      : make("details", {}, make("summary", {}, make("code", {}, `${row.numbers.slice(0, 2).map((value) => value.toPrecision(3)).join(", ")}, …`)), make("code", {}, text));
    const guess = row.stands_out ? make("span", { className: "out" }, "really rated") : "made up";
    return make("tr", {}, make("th", { scope: "row" }, row.title, cell),
      make("td", { className: "right number" }, row.amplitude.toPrecision(2)), make("td", {}, guess),
      make("td", {}, row.rating === null ? "not rated" : `your ${row.rating}`));
  }));
}

// What the person does ------------------------------------------------------------------------------------------------

async function attempt(where, work) {
  say(where, "");
  try {
    await work();
  } catch (error) {
    say(where, error.message);
  }
}

find("#join").addEventListener("click", () => {
  say("#join-said", "Joining …");
  const value = (name) => find(`#join-${name}`).value.trim();
  attempt("#join-said", () => ask("join", { server: value("server"), invitation: value("invitation") || null, ca: value("ca") || null }));
});
find("#part").addEventListener("click", () => attempt("#part-words", () => ask("part", { on: !state.part.on })));
let waiting = 0;
find("#search").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(search, SEARCH_MS);
});
find("#level").addEventListener("input", showLevel);
find("#level-set").addEventListener("click", async () => {
  const level = levels.levels[Number(find("#level").value)];
  if (await confirm("Use this level?", `From your first round on, ε is ${level.epsilon} over all rounds. After that round it cannot change.`, "Use it")) {
    attempt("#level-said", () => ask("level", { epsilon_i: level.epsilon_i }));
  }
});
find("#allow").addEventListener("click", async () => {
  if (await confirm("Allow another draw?", `New permanent bits cost ε ${state.epsilon_p} more. What was spent stays spent.`, "Allow")) {
    attempt("#ledger-note", async () => { await ask("allow-draw", {}); await ask("part", { on: true }); });
  }
});
find("#forget").addEventListener("click", async () => {
  if (!(await confirm("Forget everything?", "Ratings, taste, bits, ledger and keys are erased from this machine. There is no way back.", "Forget me"))) return;
  attempt("#lost", async () => {
    await ask("forget", {});
    document.body.dataset.over = "yes";
    fill("#main", make("p", { className: "banner calm", id: "erased", role: "status" }, "Everything is erased. You can close this page, and end the program with Ctrl-C."));
    say("#state", "Erased");
  });
});
poll();
