// The operator's dashboard: live events, the history of all rounds, and the operator's actions.

import { bytes, confirm, count, fill, find, items, make, percent, plural, say, seconds, setBar, title } from "./page.js";

const RETRY_MS = 1500;
const MOST_LISTED = 1000;
const SILENCE_MS = 12000; // the server sends an event at least every 5 seconds
const STATES = { open: "Round open", waiting: "Waiting for devices", paused: "Paused", over: "All rounds are over" };
const past = { round: [], closed_at: [], reports: [], devices: [], bytes: [], seconds: [], latency_median: [], latency_slowest: [], moved: [], attempts: [], phases: [], counts: [], failures: [] };
let now = null;
let fixed = null;
let source = null;
let lastHeard = 0;
let reading = false;

// Live ----------------------------------------------------------------------------------------------------------------

function listen() {
  source = new EventSource("/dashboard/events");
  source.addEventListener("fixed", (event) => heard(() => showFixed(JSON.parse(event.data))));
  source.addEventListener("now", (event) => heard(() => showNow(JSON.parse(event.data))));
  source.onerror = lost;
}

function heard(show) {
  lastHeard = Date.now();
  find("#lost").hidden = true;
  show();
}

function lost() {
  source.close();
  const since = lastHeard ? ` The page shows the state at ${new Date(lastHeard).toLocaleTimeString("en-GB")}.` : "";
  say("#lost", `The server does not answer. The page tries again.${since}`);
  find("#lost").hidden = false;
  find("#trouble").hidden = true;
  say("#link", "Not connected");
  say("#state", "Not reachable");
  find("#state").className = "pill bad";
  setTimeout(listen, RETRY_MS);
}

setInterval(() => {
  if (source.readyState === EventSource.OPEN && Date.now() - lastHeard > SILENCE_MS) lost();
}, 1000);

// What is shown -------------------------------------------------------------------------------------------------------

function showFixed(news) {
  if (fixed && fixed.run_id !== news.run_id) location.reload();
  fixed = news;
  say("#protocol", fixed.protocol);
  items("#can", fixed.knowledge.can);
  items("#cannot", fixed.knowledge.cannot);
  items("#asked", fixed.asks);
  const versions = fixed.versions;
  say("#versions", `hushrec ${versions.hushrec} · protocol ${versions.protocol} · database schema ${versions.schema} (${fixed.database}) · model ${fixed.model.name}${fixed.model.options.factors ? `, ${fixed.model.options.factors} factors` : ""} · run ${fixed.run_id.slice(0, 8)}`);
}

function showNow(news) {
  now = news;
  say("#state", now.state === "open" ? `Round ${count(now.round)} is open${now.paused ? ", then a pause" : ""}` : STATES[now.state]);
  find("#state").className = now.state === "open" || now.state === "over" ? "pill" : "pill warm";
  document.title = now.state === "open" ? `Round ${now.round} · hushrec server` : `${STATES[now.state]} · hushrec server`;
  const total = fixed.rounds;
  fill("#round", count(now.round), make("small", {}, ` of ${count(total)}`));
  setBar("#round-bar", now.closed / total, `${now.closed} of ${plural(total, "round", "rounds")} closed`);
  say("#round-note", roundNote());
  showReports();
  fill("#devices", count(now.devices));
  say("#fleet", now.expectation ?? "");
  const started = new Date(1000 * fixed.started).toLocaleString("en-GB");
  say("#health", `Running since ${started} · ${plural(now.items, "item", "items")} · ${plural(now.waiting, "write waits", "writes wait")} for the database · ${plural(now.refusals, "request", "requests")} refused since then`);
  for (const [action, possible] of Object.entries(POSSIBLE)) find(`[data-action=${action}]`).disabled = !possible();
  showTrouble();
  showAccuracy();
  if (now.closed > (past.round.at(-1) ?? 0) || past.round.length === 0) readPast();
}

// The reports of the open phase or, if no round is open, of the last round.
function showReports() {
  const last = past.round.length - 1;
  const isOpen = now.state === "open";
  if (!isOpen && last < 0) return;
  const [reports, asked] = isOpen ? [now.reports, now.asked] : [past.reports[last], past.devices[last] ?? past.reports[last]];
  fill("#reports", count(reports), make("small", {}, ` of ${count(asked)}`));
  setBar("#reports-bar", reports / asked, `${reports} of ${asked}`);
  say("#reports-note", isOpen && now.phases.length > 1 ? phaseNote() : dropoutNote());
}

function phaseNote() {
  const missing = Math.max(0, now.asked - now.reports);
  const place = `Phase ${now.phase}, ${now.phases.indexOf(now.phase) + 1} of ${now.phases.length}, attempt ${now.attempt}.`;
  return `${place} ${plural(missing, "device has", "devices have")} not reported yet. ${now.progress ?? ""}`;
}

function dropoutNote() {
  if (past.round.length === 0) return "\u00a0";
  const total = (number) => past.round.reduce((sum, _, n) => sum + number(n), 0);
  const last = past.round.length - 1;
  const unneeded = total(notNeeded) ? `; ${count(notNeeded(last))} not needed in it, ${count(total(notNeeded))} in all: a sum holds at most ${count(fixed.largest_sum)}` : "";
  return `${plural(dropouts(last), "drop-out", "drop-outs")} in the last round, ${count(total(dropouts))} in all${unneeded}`;
}

function showAccuracy() {
  const readable = now.accuracy.filter((row) => row.rmse !== null);
  const hidden = now.accuracy.filter((row) => row.rmse === null).map((row) => count(row.round_number));
  find("#accuracy").hidden = now.accuracy.length === 0;
  find("#accuracy-table").hidden = readable.length === 0;
  find("#accuracy-hidden").hidden = hidden.length === 0;
  say("#accuracy-hidden", `Measured after ${hidden.length === 1 ? "round" : "rounds"} ${hidden.join(", ")}, but the noise of so few devices hides it.`);
  const cell = (value, error) => make("td", { className: "right number" }, `${value.toFixed(3)} ± ${error.toFixed(3)}`);
  fill("#accuracy-rows", ...readable.map((row) => make("tr", {}, make("th", { scope: "row" }, count(row.round_number)),
    cell(row.rmse, row.rmse_error), cell(row.bias_rmse, row.bias_error))));
}

// Warnings for the operator, the worst first; empty if the run is healthy.
function troubles() {
  const last = past.round.length - 1;
  const found = [];
  if (last >= 0 && past.reports[last] === 0) found.push(`No device reported in round ${count(past.round[last])}.`);
  else if (last >= 0 && dropouts(last) > past.reports[last]) found.push(`More devices dropped out of round ${count(past.round[last])} than reported in it.`);
  if (now.concern) found.push(now.concern);
  return found;
}

function showTrouble() {
  const found = troubles();
  const isLate = isShort() && now.elapsed >= now.deadline;
  say("#link", found.length ? "Live" : isLate ? "Live, waiting for devices" : "Live, healthy");
  say("#trouble", found.join(" "));
  find("#trouble").hidden = found.length === 0;
}

function roundNote() {
  if (isShort()) return shortNote();
  if (now.state === "open") return `this phase has been open for ${seconds(now.elapsed)}; its deadline is after ${seconds(now.deadline)}`;
  if (now.state === "paused") return "no round or attempt opens until the operator opens one";
  return now.state === "over" ? `the result is final; restart the server with --run ${fixed.number + 1} to begin a next run` : `opens when ${plural(now.fewest, "device is", "devices are")} present`;
}

// Whether the open phase has too few reports to close at its deadline.
const isShort = () => now.state === "open" && now.reports < now.needed;

function shortNote() {
  const arrived = `${count(now.reports)} ${now.reports === 1 ? "has" : "have"} arrived`;
  return `open for ${seconds(now.elapsed)}; after its deadline of ${seconds(now.deadline)} the phase waits for ${plural(now.needed, "report", "reports")}, of which ${arrived}`;
}

async function readPast() {
  if (reading) return;
  reading = true;
  try {
    const reply = await fetch(`/dashboard/rounds?after=${past.round.at(-1) ?? 0}`);
    if (reply.ok) showPast(await reply.json());
  } catch {
    // The event stream notices the failure and shows it.
  } finally {
    reading = false;
  }
}

function showPast(news) {
  for (const name of Object.keys(past)) past[name].push(...news.rounds[name]);
  showDevices(news.devices);
  if (past.round.length === 0) return;
  const last = past.round.length - 1;
  showReports();
  fill("#received", bytes(news.bytes));
  say("#received-note", `${bytes(past.bytes[last] ?? 0)} in the last round`);
  if (past.latency_median[last] != null) {
    fill("#latency", seconds(past.latency_median[last]));
    say("#latency-note", `median of the last round; slowest ${seconds(past.latency_slowest[last])}`);
  }
  showChange();
  showMovers(news.most_moved);
  showTable();
  showCharts();
  showTrouble();
}

function showDevices(states) {
  const asked = states.asked ? `; ${count(states.asked)} of the previous run have not agreed to this one` : "";
  say("#devices-note", `take part; ${count(states.left ?? 0)} left, ${count(states.revoked ?? 0)} revoked${asked}`);
}

// Devices that a round asked for reports, but left out by chance, because a sum holds only so many.
const notNeeded = (n) => past.counts[n]?.["not needed"] ?? 0;
const dropouts = (n) => Math.max(0, (past.devices[n] ?? past.reports[n]) - past.reports[n] - notNeeded(n));

// Some rounds leave the public table as it is: those that only measure, and all but the last of a group of repeats.
const hasChanged = (moved) => moved > 0;

function showChange() {
  const [first, last] = [past.moved.findIndex(hasChanged), past.moved.findLastIndex(hasChanged)];
  fill("#moved", last < 0 ? "–" : percent(past.moved[last]));
  const since = first < last ? `; ${percent(past.moved[first])} in round ${count(past.round[first])}` : "";
  say("#moved-note", last < 0 ? "no round has changed it yet" : `of its norm in ${lastChange(last)}${since}`);
}

const lastChange = (n) => `round ${count(past.round[n])}${n < past.round.length - 1 ? ", the last that changed it" : ""}`;

function showMovers(movers) {
  const last = past.moved.findLastIndex(hasChanged);
  say("#movers-note", movers.length ? `Change of the public table in ${lastChange(last)}` : "No round has changed the public table yet.");
  fill("#movers", ...movers.map((mover) => {
    const bar = make("div", { className: "bar" }, make("span"));
    bar.firstElementChild.style.width = `${100 * mover.distance / movers[0].distance}%`;
    const distance = make("span", { className: "soft number" }, mover.distance.toPrecision(2));
    return make("li", {}, make("div", { className: "name" }, title(mover.title), distance), bar);
  }));
}

const known = (value, format) => (value == null ? "–" : format(value));
const byPhase = (n) => `asked\u00a0${count(past.devices[n])}${Object.entries(past.phases[n]).map(([phase, reports]) => ` · ${phase}\u00a0${count(reports)}`).join("")}`;

const failed = (failures) => failures.map((failure) => `${failure.attempt}, ${failure.phase}: ${failure.reason}`).join(" ");

function showTable() {
  const rows = [];
  const counted = Object.keys(past.counts.at(-1) ?? {}); // what this protocol counts, such as cohorts
  const names = ["Reports", "Dropped out", "Attempts", ...counted.map((name) => name[0].toUpperCase() + name.slice(1)), "Received", "Open for", "Latency", "Change"];
  fill("#table-head", make("th", { scope: "col" }, "Round"), make("th", { scope: "col" }, "Closed"),
    ...names.map((name) => make("th", { scope: "col", className: "right" }, name)), make("th", { scope: "col" }, "Reports by phase, last attempt"), make("th", { scope: "col" }, "Failed attempts"));
  for (let n = past.round.length - 1; n >= 0 && rows.length < 500; n -= 1) {
    const closed = known(past.closed_at[n], (at) => new Date(1000 * at).toLocaleTimeString("en-GB"));
    const cells = [count(past.reports[n]), count(dropouts(n)), known(past.attempts[n], count),
      ...counted.map((name) => known(past.counts[n]?.[name], count)), bytes(past.bytes[n] ?? 0), known(past.seconds[n], seconds),
      known(past.latency_median[n], seconds), known(past.moved[n], percent)];
    rows.push(make("tr", {}, make("th", { scope: "row" }, count(past.round[n])), make("td", {}, closed),
      ...cells.map((text) => make("td", { className: "right number" }, text)), make("td", {}, known(past.phases[n], () => byPhase(n))), make("td", {}, known(past.failures[n], failed))));
  }
  fill("#table", ...rows);
}

// Charts --------------------------------------------------------------------------------------------------------------

const HEIGHT = 150, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 22;

function showCharts() {
  chart("#chart-reports", "Reports and devices asked per round", [past.reports, past.devices], count);
  chart("#chart-moved", "Change of the public table in rounds that changed it", [past.moved.map((moved) => moved || null)], percent);
  chart("#chart-bytes", "Bytes received per round", [past.bytes], bytes);
  chart("#chart-latency", "Latency per round", [past.latency_median, past.latency_slowest], seconds);
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// At most one point per two pixels: the largest value of each interval of rounds.
function points(values, width) {
  const step = Math.max(1, Math.ceil(values.length / ((width - LEFT - RIGHT) / 2)));
  const found = [];
  for (let start = 0; start < values.length; start += step) {
    const stretch = values.slice(start, start + step).filter((value) => value != null);
    if (stretch.length) found.push([Math.min(start + step - 1, values.length - 1), Math.max(...stretch)]);
  }
  return found;
}

function chart(selector, name, series, format) {
  const width = Math.max(240, find(selector).clientWidth);
  const lines = series.map((values) => points(values, width));
  const most = Math.max(...lines.flat().map((point) => point[1]), 0);
  const top = most > 0 ? most * 1.1 : 1;
  const steps = Math.max(1, past.round.length - 1);
  const x = (n) => LEFT + (n / steps) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  const latest = series[0].findLastIndex((value) => value != null);
  drawn.setAttribute("aria-label", latest < 0 ? `${name}: none yet.` : `${name}: ${format(series[0][latest])} in round ${past.round[latest]}, at most ${format(most)}.`);
  for (const share of [0, 0.5, 1]) {
    const value = share * most;
    drawn.append(svg("line", { class: "grid-line", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    if (share !== 0.5) drawn.append(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  const main = lines[0].map(([n, value]) => `${x(n).toFixed(1)},${y(value).toFixed(1)}`);
  if (main.length > 1) {
    drawn.append(svg("polygon", { class: "area", points: `${x(lines[0][0][0])},${y(0)} ${main.join(" ")} ${x(lines[0].at(-1)[0])},${y(0)}` }));
  }
  lines.slice(1).reverse().concat([lines[0]]).forEach((line, n, all) => {
    const kind = n === all.length - 1 ? "line" : "line b";
    drawn.append(svg("polyline", { class: kind, points: line.map(([m, value]) => `${x(m).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  });
  if (lines[0].length) {
    const [n, value] = lines[0].at(-1);
    drawn.append(svg("circle", { class: "dot", cx: x(n), cy: y(value), r: 3.5 }));
  }
  drawn.append(svg("text", { x: LEFT, y: HEIGHT - 6 }, `round ${count(past.round[0])}`));
  if (past.round.length > 1) drawn.append(svg("text", { x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, count(past.round.at(-1))));
  fill(selector, drawn);
}

// The operator --------------------------------------------------------------------------------------------------------

const ACTIONS = {
  start: ["Open a round?", () => "This ends a pause and opens the next round or attempt now.", "Open", () => ask("POST", "/v1/admin/start"), "Opened."],
  pause: ["Pause the run?", () => "The open attempt continues; no further round or attempt opens.", "Pause", () => ask("POST", "/v1/admin/pause"), "Paused."],
  close: ["Close the phase now?", () => `Devices that have not reported are left out: ${plural(now.asked - now.reports, "device", "devices")}.`, "Close", () => ask("POST", "/v1/admin/close"), "Closed."],
  invite: ["Create invitations?", () => `This creates ${plural(invitations(), "code", "codes")}, each for one device. Codes are shown only once; the server stores only their hashes.`, "Create", invite, "Copy the codes now: they are not shown again."],
  devices: [null, null, null, listDevices, "Listed."],
  export: ["Export the public table?", () => "It holds what the server has learned about the items, and every device downloads it too. The file is in MessagePack format.", "Export", exportTable, "Exported."],
};

const POSSIBLE = {
  start: () => now.paused || now.state === "waiting",
  pause: () => !now.paused && now.state !== "over",
  close: () => now.state === "open",
};

const invitations = () => Number(find("#invitations").value);

async function ask(method, path) {
  const reply = await fetch(path, { method, headers: { Authorization: `Bearer ${find("#token").value.trim()}` } });
  if (!reply.ok) throw new Error((await reply.json()).detail ?? `the server refused (${reply.status}).`);
  return reply;
}

async function invite() {
  const { invitations: codes } = await (await ask("POST", `/v1/admin/invitations/${invitations()}`)).json();
  say("#codes", codes.join("\n"));
  find("#codes").hidden = find("#copy").hidden = false;
}

find("#copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(find("#codes").textContent);
  say("#done", "Copied.");
});

// Suspected devices come first, then those that missed the most rounds, because an operator looks for these.
async function listDevices() {
  const { devices } = await (await ask("GET", "/v1/admin/devices")).json();
  devices.sort((a, b) => b.suspected - a.suspected || b.missed - a.missed || a.id.localeCompare(b.id));
  fill("#device-rows", ...devices.slice(0, MOST_LISTED).map(deviceRow));
  find("#device-table").hidden = false;
}

const marked = (device) => [device.state, device.suspected && "suspected", device.left_out && "left out"].filter(Boolean).join(", ");

function deviceRow(device) {
  const seen = device.last_seen == null ? "–" : new Date(1000 * device.last_seen).toLocaleString("en-GB");
  const button = make("button", { type: "button", className: "danger" }, "Revoke");
  button.disabled = device.state !== "active";
  button.addEventListener("click", () => revoke(device.id));
  button.setAttribute("aria-label", `Revoke device ${device.id.slice(0, 8)}`);
  return make("tr", {}, make("th", { scope: "row" }, make("code", {}, device.id.slice(0, 8))), make("td", {}, marked(device)), make("td", {}, seen),
    make("td", { className: "right number" }, count(device.last_round)), make("td", { className: "right number" }, count(device.missed)), make("td", {}, button));
}

async function revoke(id) {
  const text = `Device ${id.slice(0, 8)} no longer takes part, and its report in the open phase is deleted. This cannot be undone.`;
  if (!(await confirm("Revoke this device?", text, "Revoke", { danger: true }))) return;
  try {
    await ask("DELETE", `/v1/admin/devices/${id}`);
    await listDevices();
    say("#done", "Revoked.");
  } catch (error) {
    say("#done", `Not done: ${error.message}`);
  }
}

async function exportTable() {
  const address = URL.createObjectURL(await (await ask("GET", "/v1/admin/public")).blob());
  make("a", { href: address, download: `public-table-round-${now.closed}.msgpack` }).click();
  URL.revokeObjectURL(address);
}

async function act(name) {
  const [title, text, yes, work, done] = ACTIONS[name];
  if (!find("#token").value.trim()) {
    say("#done", "This needs the admin token, which `hushrec serve` wrote to the file admin-token.");
    find("#token").focus();
    return;
  }
  if (title && !(await confirm(title, text(), yes))) return;
  try {
    await work();
    say("#done", done);
  } catch (error) {
    say("#done", `Not done: ${error.message}`);
  }
}

for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", () => act(button.dataset.action));
}
addEventListener("resize", () => { if (past.round.length) showCharts(); });
listen();
