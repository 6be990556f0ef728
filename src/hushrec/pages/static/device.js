// The person's page. It talks to `hushrec device ui` on this machine and to nobody else.

import { confirm, count, fill, find, items, make, percent, plural, say, setBar } from "./page.js";

const POLL_MS = 1000;
let state = null;
let levels = null;
let shown = { changes: -1, answered: -1 };
let known = null; // items of the last recommendations, to mark new ones
let searching = 0;
let over = false; // everything is erased

// The address carries the token after #, where no server sees it; then the tab keeps it.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
sessionStorage.setItem("token", token);
if (location.hash) history.replaceState(null, "", "/");

// What a person is told; every other error is a mistake of this script.
class Refused extends Error {}
const GONE = "The page’s own program has stopped. Start `hushrec device ui` again.";

async function ask(path, body) {
  const options = { headers: { "Hushrec-Token": token } };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(`/api/${path}`, options).catch(() => { throw new Refused(GONE); });
  if (reply.ok) return reply.status === 204 ? null : reply.json();
  if (reply.status === 410) erased();
  const said = await reply.json().catch(() => ({}));
  throw new Refused(typeof said.detail === "string" ? said.detail : `refused (${reply.status}).`);
}

// Asking again and again ----------------------------------------------------------------------------------------------

async function poll() {
  try {
    show(await ask("state"));
    find("#lost").hidden = true;
    const { changes, answered } = state;
    const rated = changes !== shown.changes;
    const moved = rated || answered !== shown.answered;
    shown = { changes, answered };
    if (rated) await Promise.all([showRatings(), refreshResults(), showLevels()]);
    if (moved) await Promise.all([showRecommendations(), showSent()]);
  } catch (error) {
    if (over) return;
    if (!(error instanceof Refused)) console.error(error);
    shown = { changes: -1, answered: -1 };
    say("#lost", error.message);
    find("#lost").hidden = false;
    pill(error.message === GONE ? "Not connected" : "Trouble", "bad");
  }
  setTimeout(poll, POLL_MS);
}

function pill(words, kind = "") {
  say("#state", words);
  find("#state").className = `pill ${kind}`;
}

function show(news) {
  state = news;
  find("#join-card").hidden = state.joined;
  find("#joined").hidden = !state.joined;
  const { on, words, trouble } = state.part;
  if (!state.joined) pill("Not joined", "warm");
  else if (state.over) pill("All rounds are over");
  else if (trouble) pill(on ? "Server away" : "Stopped", "bad");
  else pill(on ? "Taking part" : "Not taking part", on ? "" : "warm");
  say("#part-words", state.over ? "All rounds are over. Recommendations stay, and are computed here." : words || "Not taking part.");
  find(".part").classList.toggle("trouble", trouble);
  say("#part", on ? "Stop" : "Take part");
  find("#part").hidden = state.over;
  find("#part").disabled = !on && state.n_ratings === 0;
  say("#part-note", partNote());
  showLedger();
  if (levels?.levels.length) showLevel();
}

function partNote() {
  if (!state.joined) return "";
  const answered = state.round ? `Round ${count(state.round)} of ${count(state.rounds)} was the last this device answered.` : `No round of ${count(state.rounds)} answered yet.`;
  let advice = "";
  if (state.over) advice = " What you rate now leaves the list, but no longer changes the others: that takes rounds.";
  else if (state.n_ratings === 0) advice = " Rate something first.";
  else if (!state.ledger.permanent_draws) advice = " Rate first: your first round fixes which ratings stand behind what is sent.";
  return `${answered} Server: ${state.server}.${advice}`;
}

function showLedger() {
  const ledger = state.ledger;
  fill("#ledger", `ε ${Number(ledger.spent.toPrecision(3))}`, make("small", {}, ` of ${ledger.limit}`));
  setBar("#ledger-bar", ledger.spent / ledger.limit, `ε ${ledger.spent} of ${ledger.limit}`);
  const so = `${plural(ledger.rounds, "round", "rounds")} so far, with ${plural(ledger.permanent_draws, "draw", "draws")} of permanent bits.`;
  say("#ledger-note", `What the list of reported items can tell about which ones you rated, at most. ${so} When the bar is full, further rounds with the same bits cost nothing more.`);
  find("#allow-row").hidden = !(state.part.trouble && state.part.words.includes("budget"));
  say("#allow", `Allow another draw (ε ${state.epsilon_p} more)`);
}

// Ratings -------------------------------------------------------------------------------------------------------------

function scaleValues() {
  const [low, high] = state.scale;
  const step = [1, 0.5].find((size) => Number.isInteger((high - low) / size) && (high - low) / size <= 9) ?? (high - low) / 4;
  return Array.from({ length: Math.round((high - low) / step) + 1 }, (_, n) => low + n * step);
}

function stars(item, place) {
  const name = `${place}-${item.item}`;
  const set = make("fieldset", { className: "stars" }, make("legend", { className: "hidden" }, `Your rating of ${item.title}`));
  const values = scaleValues();
  const near = (value) => Math.abs(value - item.rating);
  const nearest = item.rating === null ? null : values.reduce((best, value) => (near(value) < near(best) ? value : best));
  for (const value of values) {
    const input = make("input", { type: "radio", name, value, checked: value === nearest });
    input.setAttribute("aria-label", `${Number(value.toFixed(2))}`);
    input.addEventListener("change", () => rate(item.item, value));
    set.append(make("label", {}, input, "★"));
  }
  return set;
}

// One after the other: of several quick presses the last must be the one that stands.
let saved = Promise.resolve();

function rate(item, value) {
  saved = saved.then(() => ask("rate", { item, value })).catch((error) => say("#found", error.message));
}

async function search() {
  const turn = ++searching;
  const found = await ask(`search?text=${encodeURIComponent(find("#search").value)}`);
  if (turn !== searching) return; // a later one is under way
  say("#found", `${plural(found.count, "title", "titles")}${found.count > found.items.length ? `, the first ${found.items.length} are shown` : ""}`);
  fill("#results", ...found.items.map((item) => make("li", {}, make("span", { className: "title" }, item.title), stars(item, "found"))));
}

async function refreshResults() {
  if (!find("#results").contains(document.activeElement)) await search(); // do not move what has the focus
}

async function showRatings() {
  const { items: rated } = await ask("ratings");
  say("#own-head", `Your ratings (${count(rated.length)})`);
  if (find("#ratings").contains(document.activeElement)) return; // the same
  fill("#ratings", ...rated.map((item) => {
    const row = stars(item, "own");
    const remove = make("button", { type: "button", className: "plain" }, "Remove");
    remove.setAttribute("aria-label", `Remove the rating of ${item.title}`);
    remove.addEventListener("click", () => { find("#own-head").focus(); rate(item.item, null); });
    row.append(remove);
    return make("li", {}, make("span", { className: "title" }, item.title), row);
  }));
}

async function showRecommendations() {
  const ready = state.has_vectors && state.n_ratings > 0;
  say("#nothing-yet", ready ? "" : state.has_vectors ? "Rate something, and they come back." : "Recommendations appear after your first round.");
  const best = ready ? (await ask("recommendations")).items : [];
  fill("#recommendations", ...best.map((item) => {
    const title = make("span", { className: "title" }, item.title);
    if (known && !known.has(item.item)) title.append(make("span", { className: "new" }, "new"));
    const reasons = item.reasons.map((reason) => `${reason.title}, your ${reason.rating}`).join("; ");
    const why = make("span", { className: "why" }, reasons ? `Because it is like ${reasons}` : "Nothing you liked is like it; others shaped this");
    const predicted = Math.min(state.scale[1], Math.max(state.scale[0], item.predicted)).toFixed(1);
    const score = make("span", { className: "score number" }, `${predicted} ★`);
    score.setAttribute("aria-label", `predicted ${predicted}`);
    score.setAttribute("role", "img");
    return make("li", {}, title, score, why);
  }));
  known = ready ? new Set(best.map((item) => item.item)) : null;
}

// The budget ----------------------------------------------------------------------------------------------------------

async function showLevels() {
  const first = levels === null || levels.levels.length === 0;
  levels = await ask("levels");
  if (levels.levels.length === 0) return;
  find("#level").max = levels.levels.length - 1;
  fill("#marks", ...levels.levels.map((level) => make("span", {}, level.name)));
  if (first) find("#level").value = levels.levels.findIndex((level) => level.in_use);
  items("#not-covered", levels.can);
  showLevel();
}

function showLevel() {
  const level = levels.levels[Number(find("#level").value)];
  const used = levels.levels.find((other) => other.in_use);
  const name = `${level.name}, ε ${level.epsilon} over all rounds`;
  say("#level-name", level.in_use ? `${name} (in use)` : name);
  find("#level").setAttribute("aria-valuetext", level.in_use ? `${name}, in use` : name);
  const accuracy = levels.accuracy;
  const share = (value) => `${Number((100 * value).toPrecision(3))}\u00a0%`;
  items("#level-words", [
    `Items sent each round: about ${level.items_sent.toFixed(1)}; really rated among them: ${level.real.toFixed(1)} (by pure chance ${level.by_chance.toFixed(1)}).`,
    `If the server believed with ${share(level.before)} that you rated an item: from which items are sent it can get to ${share(level.after)} at most, and to ${share(level.never)} at least, over all rounds.`,
    `Expected accuracy: ${level.rmse === null ? "not measured for a level of your own" : `off by ${level.rmse.toFixed(3)} stars (RMSE)`}; without privacy ${accuracy.not_private.toFixed(3)}, for a model that knows no taste ${accuracy.without_taste.toFixed(3)}. Source: ${accuracy.source}.`,
    "No level hides the numbers sent with the items: see below what they give away.",
  ]);
  find("#level-set").disabled = level.in_use || !state.can_change_level;
  say("#level-said", state.can_change_level ? "" : `In use: ${used.name}, ε ${used.epsilon}. Fixed since your first round: your permanent bits were drawn with it. A new draw would be paid again.`);
}

// What left -----------------------------------------------------------------------------------------------------------

async function showSent() {
  if (find("#sent-rows details[open]")) return; // it is being read
  const { last } = await ask("sent");
  find("#sent").hidden = last === null;
  find("#sent-none").hidden = last !== null;
  if (last === null) return;
  const numbers = last.rows.length * (last.rows[0]?.numbers.length ?? 0);
  const yours = last.rows.filter((row) => row.rating !== null).length;
  say("#sent-words", `Round ${count(last.round)}: ${plural(last.rows.length, "item", "items")} with ${plural(numbers, "number", "numbers")}, ${count(last.bytes)} bytes.${last.waiting ? " Still waiting to be sent." : ""} Chance chose the items; you rated ${count(yours)} of them.`);
  say("#sent-from", last.n_uploads === 1 ? "What a server can read off it" : `What a server can read off your last ${count(last.n_uploads)} reports`);
  items("#sent-read", [
    `Your taste: its guess lies along the true direction with a cosine of ${last.cosine.toFixed(2)} (1 is exact). Of your ${last.of_top} best recommendations it would name ${last.same_top}; anybody, without a report of yours, ${last.public_top}.`,
    `Which items you rated: of ${plural(last.n_seen, "item", "items")} seen it would call ${last.n_believed} rated, and be right about ${last.n_right}. You rated ${last.n_rated}.`,
    `Your ratings: of those ${last.n_right} it would know ${last.n_exact} exactly.`,
    "Found here, by running the audit’s attacks on your own reports. A server that keeps more of them, knows what is popular, or cheats, knows more.",
  ]);
  const rows = [...last.rows].sort((a, b) => b.belief - a.belief);
  fill("#sent-rows", ...rows.map((row) => {
    const short = (values) => values.map((value) => value.toPrecision(3)).join(", ");
    const cell = row.numbers.length <= 4 ? make("code", {}, short(row.numbers))
      : make("details", {}, make("summary", {}, make("code", {}, `${short(row.numbers.slice(0, 2))}, …`)), make("code", {}, short(row.numbers)));
    const sure = percent(Math.min(0.99, row.guess === null ? 1 - row.belief : row.belief));
    const guess = row.guess === null ? `made up, ${sure} sure` : make("span", { className: "out" }, `rated ${row.guess}, ${sure} sure`);
    return make("tr", {}, make("th", { scope: "row" }, row.title, cell),
      make("td", {}, guess), make("td", {}, row.rating === null ? "not rated" : `your ${row.rating}`));
  }));
}

// What the person does ------------------------------------------------------------------------------------------------

async function attempt(where, work) {
  say(where, "");
  try {
    await work();
  } catch (error) {
    if (!over) say(where, error.message);
  }
}

function erased() {
  over = true;
  pill("Erased");
  fill("#main", make("p", { className: "banner calm", id: "erased", role: "status" }, "Everything is erased. You can close this page, and end the program with Ctrl-C."));
}

find("#join").addEventListener("click", () => {
  const value = (name) => find(`#join-${name}`).value.trim();
  attempt("#join-said", () => {
    say("#join-said", "Joining …");
    return ask("join", { server: value("server"), invitation: value("invitation") || null, ca: value("ca") || null });
  });
});
find("#part").addEventListener("click", () => attempt("#part-words", async () => {
  await ask("part", { on: !state.part.on });
  show(await ask("state"));
}));
find("#search").addEventListener("input", () => search().catch((error) => say("#found", error.message)));
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
  if (!(await confirm("Forget everything?", "Ratings, taste, bits, ledger and keys are erased from this machine. There is no way back.", "Forget me", { danger: true }))) return;
  attempt("#forget-said", async () => { await ask("forget", {}); erased(); });
});
poll();
