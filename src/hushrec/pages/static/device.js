// The person's page. It talks only to `hushrec device ui` on this machine.

import { confirm, count, fill, find, isolate, items, make, percent, plural, say, title } from "./page.js";

const POLL_MS = 1000;
const MERGE_MS = 2000;
let state = null;
let levels = null;
let own = null; // the level that the person typed, as text
let shown = { changes: -1, reported: -1 };
let known = null; // items of the last recommendations, to mark new ones
let searching = 0;
let sentRound = null; // the round of the last masked table, 0 before the first; null under other protocols
let over = false; // everything is erased

// The address carries the token after #, which browsers do not send to a server; afterwards the tab keeps it.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
sessionStorage.setItem("token", token);
if (location.hash) history.replaceState(null, "", "/");

// An error to show to the person, identified by `code`. Any other error is a bug of this script.
class Refused extends Error {
  constructor(code, detail) {
    super(WORDS[code] ?? detail);
    this.code = code;
  }
}

const WORDS = {
  gone: "The program behind this page has stopped. Start `hushrec device ui` again.",
  unreachable: "The server could not be reached at this address. Check the address, and ask the operator whether the server is running.",
  silent: "The server accepted the connection, but did not reply. Try again later.",
  busy: "The server is overloaded. Try again in a moment.",
  "not-http": "The server ended the connection without a reply. Try again, or check whether the address must begin with https.",
  "certificate-untrusted": "Your device does not trust this server’s certificate. If the operator gave you a certificate file, enter its path below; otherwise do not continue.",
  "certificate-name": "This server’s certificate is for another address. Use the address that the operator gave you.",
  "certificate-expired": "This server’s certificate has expired, or the clock of this machine is ahead. If the clock is right, the operator has to renew the certificate.",
  "certificate-early": "This server’s certificate is not valid yet. The clock of this machine is probably behind.",
  "not-invited": "This server requires an invitation. Enter the code that the operator gave you.",
  "nothing-next": "The server does not offer further rounds or a next run yet. You keep your recommendations, and new ratings still change them.",
  "wrong-run": "This server has another run than the one that this device joined.",
};

async function ask(path, body) {
  const options = { headers: { "Hushrec-Token": token } };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(`/api/${path}`, options).catch(() => { throw new Refused("gone"); });
  if (reply.ok) return reply.status === 204 ? null : reply.json();
  const said = await reply.json().catch(() => ({}));
  if (said.code === "erased") erased();
  throw new Refused(said.code ?? "error", typeof said.detail === "string" ? said.detail : `Refused (${reply.status}).`);
}

// Polling -------------------------------------------------------------------------------------------------------------

async function poll() {
  try {
    show(await ask("state"));
    find("#lost").hidden = true;
    const { changes, reported } = state;
    const rated = changes !== shown.changes;
    const moved = rated || reported !== shown.reported;
    shown = { changes, reported };
    if (rated) await Promise.all([showRatings(), refreshResults(), showLevels()]);
    if (moved) await Promise.all([showRecommendations(), showSent()]);
  } catch (error) {
    if (over) return;
    if (!(error instanceof Refused)) console.error(error);
    shown = { changes: -1, reported: -1 };
    say("#lost", error.message);
    find("#lost").hidden = false;
    pill(error.code === "gone" ? "Not connected" : "Trouble", "bad");
  }
  setTimeout(poll, POLL_MS);
}

function pill(words, kind = "") {
  say("#state", words);
  find("#state").className = `pill ${kind}`;
}

// The state of the participation in words, by code.
const PART = {
  off: "Not taking part.",
  looking: "Asking the server for a round.",
  waiting: "Waiting for the next round.",
  "in-round": "This device has reported, and waits for the other devices.",
  reporting: "Reporting in rounds.",
  away: "The server does not answer. Your device tries again; nothing is lost.",
  busy: "The server is overloaded. Your device tries again; nothing is lost.",
  budget: "Stopped: the next report would cost more than you have allowed. See the privacy ledger below.",
  "copied-store": "Stopped: this device’s key was also used elsewhere, so this store is a copy or an old backup. Enrol again with `hushrec device join --again`.",
  "not-enrolled": "Stopped: the server no longer knows this device. Enrol again with `hushrec device join --again`.",
  "not-active": "Stopped: the server’s operator has removed this device.",
  next: "The server offers further rounds, or a next run. Your device takes part if you agree.",
  "server-behind": "Stopped: the server was restored from an old backup. When the operator begins a next run, you can agree to it here. You keep your recommendations.",
};
const AFTER = new Set(["next", "server-behind"]); // this run is over for this device
const CALM = new Set(["off", "looking", "waiting", "in-round", "reporting"]);
const TRYING = new Set(["away", "busy"]);

function show(news) {
  const first = state !== null && news.has_joined && !state.has_joined;
  state = news;
  find("#welcome").hidden = state.has_joined;
  document.body.classList.toggle("welcoming", !state.has_joined);
  find("#joined").hidden = !state.has_joined;
  const { on, words } = state.part;
  const code = state.part.code === "waiting" && state.in_round ? "in-round" : state.part.code;
  const calm = CALM.has(code);
  if (!state.has_joined) pill("Not joined", "warm");
  else if (state.is_over) pill("All rounds are over");
  else if (!calm) pill(TRYING.has(code) ? "Server away" : "Stopped", "bad");
  else pill(on ? "Taking part" : "Not taking part", on ? "" : "warm");
  say("#part-words", state.is_over ? "All rounds are over. You keep your recommendations, and new ratings still change them." : (PART[code] ?? `Stopped: ${words}`) + (state.refusal && ` Your device left a round, because it refused a message: ${state.refusal}`));
  find(".part").classList.toggle("trouble", !calm && !state.is_over);
  say("#part", on ? "Stop" : "Take part");
  find("#part").hidden = state.is_over || AFTER.has(code);
  find("#next").hidden = !find("#part").hidden;
  find("#part").disabled = !on && state.n_known === 0;
  say("#part-note", partNote());
  showLedger();
  showUnsent();
  if (levels?.levels.length) showLevel();
  if (first) find("#part-head").focus();
}

function partNote() {
  if (!state.has_joined) return "";
  const reported = state.round_number ? `Last report: round ${count(state.round_number)} of ${count(state.rounds)}.` : `The run has ${plural(state.rounds, "round", "rounds")}; this device has not reported yet.`;
  const advice = !state.is_over && state.n_known === 0 ? " Rate something first." : "";
  return `${reported} Server: ${state.server}.${advice}`;
}

const epsilon = (value) => `ε ${value === "inf" ? "∞" : Number(value.toPrecision(3))}`;
const exactEpsilon = (value) => `ε ${value === "inf" ? "∞" : value}`;

function showLedger() {
  const { spent, limit, rounds, charged, sentences } = state.ledger;
  const { needed } = state.part;
  fill("#ledger", epsilon(spent), make("small", {}, limit === null ? " spent" : ` of ${epsilon(limit)}`));
  say("#ledger-note", [...(rounds === null ? [] : [`${charged ?? plural(rounds, "round", "rounds")} so far.`]), ...sentences].join(" "));
  find("#allow-row").hidden = state.part.code !== "budget" || needed === null;
  if (needed !== null) say("#allow", `Raise your limit to ${epsilon(needed)}`);
}

// The welcome ---------------------------------------------------------------------------------------------------------

const place = () => ({ server: find("#join-server").value.trim(), ca: find("#join-ca").value.trim() || null });

function go(step) {
  for (const n of [1, 2, 3]) find(`#step-${n}`).hidden = n !== step;
  find(`#step-${step} h2`).focus();
}

async function look() {
  say("#step-1-said", "");
  if (!place().server) {
    say("#step-1-said", "Enter the address that the server’s operator gave you.");
    return find("#join-server").focus();
  }
  pill("Asking the server", "warm");
  try {
    const offer = await ask("look", place());
    say("#offer", `This server has ${plural(offer.n_items, "item", "items")} and plans ${plural(offer.rounds, "round", "rounds")}. So far it knows nothing about you: your device has only asked for its offer. ${offer.expectation ?? ""}`);
    say("#welcome-risk", offer.risk);
    say("#welcome-choice", offer.choice);
    items("#welcome-can", offer.can);
    fill("#welcome-levels", ...offer.levels.map(levelChoice), ...(offer.takes_own ? [ownChoice()] : []));
    say("#join-sends", `Joining sends a new public key${find("#join-invitation").value ? " and your invitation" : ""} to ${place().server}, and nothing else. Reports are sent only after you press “Take part”.`);
    go(2);
  } catch (error) {
    refuseJoin("#step-1-said", error);
  }
}

const lookAtOwn = () => ask("look", { ...place(), own: typed("#welcome-own") }).then(({ levels: found }) => found.find((level) => level.is_asked));

// The last choice of the welcome: a level that the person types. Its meaning is shown when the field is left.
function ownChoice() {
  const chosen = make("input", { type: "radio", name: "welcome-level", value: "own", id: "welcome-other" });
  chosen.setAttribute("aria-label", "Your own level");
  const field = make("input", { type: "text", className: "short", id: "welcome-own", inputMode: "decimal", maxLength: 40, autocomplete: "off" });
  field.setAttribute("aria-label", "Your own ε over all rounds");
  const words = make("span", { className: "small soft", id: "welcome-own-words" });
  words.setAttribute("role", "status");
  field.addEventListener("input", () => { chosen.checked = true; words.textContent = ""; });
  field.addEventListener("change", () => lookAtOwn().then((level) => { words.textContent = level.welcome; }, (error) => { words.textContent = error.message; }));
  return make("label", {}, chosen, make("span", {}, make("strong", {}, "Your own ε: ", field), words));
}

function levelChoice(level) {
  const input = make("input", { type: "radio", name: "welcome-level", value: level.level, checked: level.in_use });
  return make("label", {}, input, make("span", {}, make("strong", {}, `${level.name} (${exactEpsilon(level.epsilon)} over all rounds)`), make("span", { className: "small soft" }, level.welcome)));
}

function refuseJoin(where, error) {
  if (where === "#step-3-said" && (error.code === "not-invited" || error.code?.startsWith("certificate"))) {
    go(1);
    where = "#step-1-said";
  }
  say(where, error.message);
  if (error.code === "not-invited" || error.code === "certificate-untrusted") {
    find("#join-more").open = true;
    find(error.code === "not-invited" ? "#join-invitation" : "#join-ca").focus();
  } else if (where === "#step-1-said") find("#join-server").focus();
}

async function join() {
  const chosen = find("#welcome-levels input:checked");
  find("#join").disabled = true;
  say("#step-3-said", "");
  try {
    const level = chosen?.value === "own" ? (await lookAtOwn()).level : chosen?.value ?? null;
    await ask("join", { ...place(), invitation: find("#join-invitation").value.trim() || null, level });
  } catch (error) {
    refuseJoin("#step-3-said", error);
  }
  find("#join").disabled = false;
}

for (const [n, next] of [[1, look], [2, () => go(3)], [3, join]]) {
  find(`#step-${n}`).addEventListener("submit", (event) => { event.preventDefault(); next(); });
  find(`#step-${n} .back`)?.addEventListener("click", () => go(n - 1));
}

// Ratings -------------------------------------------------------------------------------------------------------------

function stars(item, place) {
  const name = `${place}-${item.item}`;
  const set = make("fieldset", { className: "stars" }, make("legend", { className: "hidden" }, "Your rating of ", title(item.title)));
  const values = state.form;
  const near = (value) => Math.abs(value - item.rating);
  const nearest = item.rating === null ? null : values.reduce((best, value) => (near(value) < near(best) ? value : best));
  for (const value of values) {
    const input = make("input", { type: "radio", name, value, checked: value === nearest });
    input.setAttribute("aria-label", `${Number(value.toFixed(2))}`);
    input.addEventListener("change", () => rate(item, value, input));
    set.append(make("label", {}, input, "★"));
  }
  return set;
}

// Ratings are saved one at a time, so that the last of several quick presses wins.
let saved = Promise.resolve();
let change = null; // the last change, for undo

function rate(item, value, origin) {
  const now = Date.now();
  if (change === null || change.item !== item.item || now - change.at > MERGE_MS) change = { item: item.item, origin: origin?.name };
  change.at = now; // arrow keys pass over other stars; together they are one change
  fill("#undo-words", value === null ? "Removed the rating of " : `Rated ${Number(value.toFixed(2))}: `, title(item.title));
  find("#undo-row").hidden = false;
  save(change, value);
}

function save(made, value) {
  saved = saved.then(() => ask("rate", { item: made.item, value }))
    .then(({ before }) => { if (!("before" in made)) made.before = before; })
    .catch((error) => say("#found", error.message));
}

function undo() {
  const made = change;
  change = null;
  find("#undo-row").hidden = true;
  focusStar(made.origin, null);
  saved = saved.then(() => ask("rate", { item: made.item, value: made.before })).then(search).catch((error) => say("#found", error.message));
}

// Focuses the star with this name and value; else the first star with this name; else the search field.
function focusStar(name, value) {
  const found = [...document.querySelectorAll(`#results input[name="${CSS.escape(name ?? "")}"]`)];
  (found.find((input) => input.value === String(value)) ?? found[0] ?? find("#search")).focus();
}

const row = (item) => make("li", {}, make("span", { className: "title" }, title(item.title)), stars(item, "found"));

async function search() {
  const turn = ++searching;
  const text = find("#search").value.trim();
  const found = await ask(`search?text=${encodeURIComponent(text)}`);
  if (turn !== searching) return; // a later search has begun
  const order = !text && state?.has_learned ? ", the most popular first" : "";
  say("#found", `${plural(found.count, "title", "titles")}${order}`);
  const { name, value } = find("#results").contains(document.activeElement) ? document.activeElement : {};
  fill("#results", ...found.items.map(row));
  if (name) focusStar(name, value);
  find("#more-row").hidden = found.items.length >= found.count;
}

async function showMore() {
  const turn = ++searching;
  const first = find("#results").children.length;
  const found = await ask(`search?text=${encodeURIComponent(find("#search").value.trim())}&first=${first}`);
  if (turn !== searching) return;
  const added = found.items.map(row);
  find("#results").append(...added);
  find("#more-row").hidden = first + added.length >= found.count;
  added[0]?.querySelector("input").focus();
}

async function refreshResults() {
  const busy = find("#results").contains(document.activeElement) || find("#results").children.length > 12;
  if (!busy) await search(); // do not move the focused row, nor remove the rows of “Show more”
}

async function showRatings() {
  const { items: rated } = await ask("ratings");
  say("#own-head", `Your ratings (${count(rated.length)})`);
  if (find("#ratings").contains(document.activeElement)) return; // do not move the focused row
  fill("#ratings", ...rated.map((item) => {
    const set = stars(item, "own");
    const remove = make("button", { type: "button", className: "plain" }, "Remove");
    remove.setAttribute("aria-label", `Remove the rating of ${isolate(item.title)}`);
    remove.addEventListener("click", () => { find("#own-head").focus(); rate(item, null); });
    set.append(remove);
    const note = item.is_known ? [] : [make("span", { className: "small soft" }, " (not in this server’s catalogue)")];
    return make("li", {}, make("span", { className: "title" }, title(item.title), ...note), set);
  }));
}

async function showRecommendations() {
  const ready = state.can_recommend && state.n_known > 0;
  const wait = state.can_recommend ? "Rate a few items that you know, and recommendations appear at once." : "Recommendations appear after the server’s first round.";
  say("#nothing-yet", ready ? "" : wait);
  const found = ready ? await ask("recommendations") : { items: [], order: null, no_reasons: null };
  const best = found.items;
  say("#list-order", best.length ? [found.order, found.no_reasons].filter(Boolean).join(" ") : "");
  fill("#recommendations", ...best.map((item) => recommendation(item, !found.no_reasons)));
  known = ready ? new Set(best.map((item) => item.item)) : null;
}

// A predicted rating: in stars on a scale up to 5, else with the scale’s end, as in “58.9 of 100”.
function points(value) {
  const [low, high] = state.scale;
  const shown = value.toFixed(high - low < 2 ? 2 : 1);
  if (low < 0) return `${shown} (${low} to ${high})`;
  return high === 5 ? `${shown} ★` : `${shown} of ${high}`;
}

function recommendation(item, hasReasons) {
  const name = make("span", { className: "title" }, title(item.title));
  if (known && !known.has(item.item)) name.append(make("span", { className: "new" }, "new"));
  const reasons = item.reasons.flatMap((reason, n) => [n ? "; " : "Similar to ", title(reason.title), `, which you rated ${reason.rating}`]);
  const why = make("span", { className: "why" }, ...(reasons.length ? reasons : ["Not similar to anything you liked"]));
  const score = make("span", { className: "score number" }, points(item.predicted));
  score.setAttribute("aria-label", `predicted ${points(item.predicted).replace(" ★", "")}`);
  score.setAttribute("role", "img");
  return make("li", {}, name, score, ...(hasReasons ? [why] : []));
}

// The budget ----------------------------------------------------------------------------------------------------------

const typed = (field) => find(field).value.trim().replace(",", ".");

async function showLevels() {
  const before = levels?.levels[Number(find("#level").value)];
  putLevels(await ask(own === null ? "levels" : `levels?own=${encodeURIComponent(own)}`), (level) => level.level === before?.level);
}

// Shows these levels, with the slider at the wanted one; at the level in use if there is no such level.
function putLevels(found, isWanted) {
  levels = found;
  find("#own-level").hidden = !levels.takes_own;
  find("#level-card").hidden = levels.levels.length === 0;
  items("#not-covered", levels.can ?? []);
  if (levels.levels.length === 0) return;
  find("#level").max = levels.levels.length - 1;
  fill("#marks", ...levels.levels.map((level) => make("span", {}, level.name)));
  const wanted = levels.levels.findIndex(isWanted);
  find("#level").value = wanted >= 0 ? wanted : levels.levels.findIndex((level) => level.in_use);
  showLevel();
}

// Adds the level that the person typed to the slider, with its meaning; “Use this level” then sets it.
async function showOwnLevel() {
  const text = typed("#own-epsilon");
  putLevels(await ask(`levels?own=${encodeURIComponent(text)}`), (level) => level.is_asked);
  own = text;
  find("#level").focus();
}

function showLevel() {
  const level = levels.levels[Number(find("#level").value)];
  const used = levels.levels.find((other) => other.in_use);
  const name = `${level.name}, ${exactEpsilon(level.epsilon)} over all rounds`;
  say("#level-name", level.in_use ? `${name} (in use)` : name);
  find("#level").setAttribute("aria-valuetext", level.in_use ? `${name}, in use` : name);
  items("#level-words", [...level.words, ...(levels.expectation ? [`What to expect: ${levels.expectation}`] : [])]);
  const { fixed } = state.ledger;
  find("#level-set").disabled = level.in_use || fixed !== null;
  say("#level-said", fixed === null ? "" : `${used ? `In use: ${used.name}, ${exactEpsilon(used.epsilon)}. ` : ""}${fixed}`);
}

// What was sent -------------------------------------------------------------------------------------------------------

// A device can report in a round without sending its table, which is what the person sees here.
function showUnsent() {
  const round = `round ${count(state.round_number)}`;
  const words = state.in_round ? `The device takes part in ${round}, and has not sent its table of this round yet.`
    : `In ${round} the device has sent its keys, but no table: the sum did not need it, or the attempt ended first.`;
  const isLater = sentRound === 0 ? state.in_round : sentRound !== null && state.round_number > sentRound;
  say("#sent-later", isLater ? words : "");
  find("#sent-none").hidden = sentRound === null || (isLater && sentRound === 0);
}

async function showSent() {
  if (find("#sent-rows details[open]")) return; // the person is reading it
  const { last, table, round } = await ask("sent");
  sentRound = table ? round : last === null ? 0 : null;
  if (table) say("#sent-none", table.join(" "));
  showUnsent();
  find("#sent").hidden = last === null;
  if (last === null) return;
  const numbers = last.rows.length * (last.rows[0]?.numbers.length ?? 0);
  const yours = last.rows.filter((row) => row.rating !== null).length;
  say("#sent-words", `Round ${count(last.round)}: ${plural(last.rows.length, "item", "items")} with ${plural(numbers, "number", "numbers")}, ${count(last.bytes)} bytes.${last.waiting ? " Still waiting to be sent." : ""} The items were drawn at random; you rated ${count(yours)} of them.`);
  say("#sent-from", last.n_reports === 1 ? "What a server can infer from it" : `What a server can infer from your last ${count(last.n_reports)} reports`);
  items("#sent-read", [
    `Your taste: the server’s guess of your taste vector has a cosine of ${last.cosine.toFixed(2)} with the true one (1 is exact). It would name ${last.same_top} of your ${last.of_top} best recommendations; somebody without your reports would name ${last.public_top}.`,
    `Which items you rated: of the ${plural(last.n_seen, "reported item", "reported items")} the server would guess that you rated ${last.n_believed}, and be right about ${last.n_right}. You rated ${plural(last.n_rated, "item", "items")} in all.`,
    `Your ratings: of those ${last.n_right} the server would know ${last.n_exact} exactly.`,
    "This device found this by running the audit’s attacks on your own reports. A server that keeps more reports, knows which items are popular, or cheats, can infer more.",
  ]);
  const rows = [...last.rows].sort((a, b) => b.belief - a.belief);
  fill("#sent-rows", ...rows.map((row) => {
    const short = (values) => values.map((value) => value.toPrecision(3)).join(", ");
    const cell = row.numbers.length <= 4 ? make("code", {}, short(row.numbers))
      : make("details", {}, make("summary", {}, make("code", {}, `${short(row.numbers.slice(0, 2))}, …`)), make("code", {}, short(row.numbers)));
    const sure = percent(Math.min(0.99, row.guess === null ? 1 - row.belief : row.belief));
    const guess = row.guess === null ? `not rated, ${sure} sure` : make("span", { className: "out" }, `rated ${Number(row.guess.toFixed(2))}, ${sure} sure`);
    return make("tr", {}, make("th", { scope: "row" }, title(row.title), cell),
      make("td", {}, guess), make("td", {}, row.rating === null ? "not rated" : `rated ${row.rating}`));
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
  fill("#main", make("p", { className: "banner calm", id: "erased", role: "status" }, "Everything is erased. You can close this page, and stop the program with Ctrl-C."));
  find("#main").focus();
}

find("#part").addEventListener("click", () => attempt("#part-words", async () => {
  await ask("part", { on: !state.part.on });
  show(await ask("state"));
}));
find("#next").addEventListener("click", () => attempt("#next-said", async () => {
  const next = await ask("next");
  const more = next.raise_to === null ? "" : ` Together with your earlier reports the cost can reach ${exactEpsilon(next.raise_to)}; if you agree, your limit is raised to that.`;
  const question = next.is_next_run ? "Take part in the next run?" : "Take part in further rounds?";
  const begins = next.is_next_run ? "The next run learns from the beginning, with new terms." : "Your device reports in the further rounds as before.";
  const keeps = next.is_next_run ? " Until its first round has ended, you keep your present recommendations." : "";
  const words = `${begins} ${next.asks.join(" ")}${more}${keeps}`;
  if (await confirm(question, words, "Take part")) {
    find("#part-head").focus(); // the button disappears
    await ask("next", { raise_to: next.raise_to });
    show(await ask("state"));
  }
}));
find("#search").addEventListener("input", () => search().catch((error) => say("#found", error.message)));
find("#search-form").addEventListener("submit", (event) => event.preventDefault());
find("#more").addEventListener("click", () => attempt("#found", showMore));
find("#undo").addEventListener("click", undo);
find("#level").addEventListener("input", showLevel);
find("#own-level").addEventListener("submit", (event) => { event.preventDefault(); attempt("#own-said", showOwnLevel); });
find("#level-set").addEventListener("click", async () => {
  const level = levels.levels[Number(find("#level").value)];
  if (await confirm("Use this level?", level.confirm, "Use it")) {
    find("#level").focus(); // the button becomes disabled
    attempt("#level-said", () => ask("level", { level: level.level }));
  }
});
find("#allow").addEventListener("click", async () => {
  const { needed } = state.part;
  if (await confirm("Raise your limit?", `Further reports cost budget in addition to what was spent before. Your limit for all runs together is now ${epsilon(state.ledger.limit ?? 0)}, and would be ${epsilon(needed)}.`, "Raise it")) {
    find("#ledger-head").focus(); // the button disappears
    attempt("#ledger-note", () => ask("allow", { raise_to: needed }));
  }
});
find("#forget").addEventListener("click", async () => {
  if (!(await confirm("Forget everything?", "Your ratings, everything learned from them, the ledger and the keys are erased from this machine. This cannot be undone.", "Forget me", { danger: true }))) return;
  attempt("#forget-said", async () => { await ask("forget", {}); erased(); });
});
poll();
