// A device of protocol `sdcf` with model `mf`, written from docs/wire.md alone, with what node brings.
//
//   node device.mjs vectors FILE             checks the test vectors of docs/wire.md
//   node device.mjs report URL RATINGS       enrols, reports in one round, and prints what it did as JSON
//
// RATINGS is JSON: {"item id": rating from 1 to 5}.

import { createHash, createPrivateKey, createPublicKey, generateKeyPairSync, randomBytes, sign } from "node:crypto";
import { readFileSync } from "node:fs";

const VERSION = 2;

// MessagePack -------------------------------------------------------------------------------------------------------

const header = (small, base, wide) => (length) => {
  if (length < small) return Buffer.from([base | length]);
  const [code, bytes] = wide.find(([, bytes]) => length < 2 ** (8 * bytes));
  const out = Buffer.alloc(1 + bytes);
  out[0] = code;
  out.writeUIntBE(length, 1, bytes);
  return out;
};
const heads = {
  map: header(16, 0x80, [[0xde, 2], [0xdf, 4]]),
  array: header(16, 0x90, [[0xdc, 2], [0xdd, 4]]),
  text: header(32, 0xa0, [[0xd9, 1], [0xda, 2], [0xdb, 4]]),
  bin: header(0, 0, [[0xc4, 1], [0xc5, 2], [0xc6, 4]]),
  whole: header(128, 0, [[0xcc, 1], [0xcd, 2], [0xce, 4]]),
};

function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === "number") return heads.whole(value); // a device sends no other number outside of buffers
  if (typeof value === "string") return Buffer.concat([heads.text(Buffer.byteLength(value)), Buffer.from(value)]);
  if (Buffer.isBuffer(value)) return Buffer.concat([heads.bin(value.length), value]);
  if (Array.isArray(value)) return Buffer.concat([heads.array(value.length), ...value.map(pack)]);
  const entries = Object.entries(value);
  return Buffer.concat([heads.map(entries.length), ...entries.flat().map(pack)]);
}

function unpack(body) {
  let place = 0;
  const whole = (bytes) => body.readUIntBE((place += bytes) - bytes, bytes);
  const slice = (length) => body.subarray(place, (place += length));
  const list = (length) => Array.from({ length }, read);
  const map = (length) => Object.fromEntries(Array.from({ length }, () => [read(), read()]));
  const read = () => {
    const code = whole(1);
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 15);
    if (code < 0xa0) return list(code & 15);
    if (code < 0xc0) return slice(code & 31).toString();
    const size = { 0xc4: 1, 0xc5: 2, 0xc6: 4, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4 }[code];
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code === 0xca) return body.readFloatBE((place += 4) - 4);
    if (code === 0xcb) return body.readDoubleBE((place += 8) - 8);
    if (code === 0xcf) return Number(body.readBigUInt64BE((place += 8) - 8)); // exact below 2⁵³
    if (code <= 0xc6) return slice(whole(size));
    if (code <= 0xce) return whole(size);
    if (code <= 0xdb) return slice(whole(size)).toString();
    return code <= 0xdd ? list(whole(size)) : map(whole(size));
  };
  const value = read();
  if (place !== body.length) throw new Error("bytes after the message");
  return value;
}

const encode = (type, fields) => pack({ type, version: VERSION, ...fields });

function decode(body, type) {
  const message = unpack(body);
  if (message.version !== VERSION || message.type !== type) throw new Error(`expected a message of type ${type}`);
  return message;
}

const floats = (buffer) => Array.from({ length: buffer.length / 4 }, (_, n) => buffer.readFloatLE(4 * n));
const rows = ([width, buffer]) => {
  const numbers = floats(buffer);
  return Array.from({ length: numbers.length / width }, (_, n) => numbers.slice(n * width, (n + 1) * width));
};
const float32 = (numbers) => Buffer.from(Float32Array.from(numbers).buffer);
const uint32 = (numbers) => Buffer.from(Uint32Array.from(numbers).buffer);

// Keys and signatures -----------------------------------------------------------------------------------------------

const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts.map((part) => Buffer.from(part)))).digest("hex");
const rawPublic = (key) => Buffer.from(createPublicKey(key).export({ format: "jwk" }).x, "base64url");
const deviceId = (publicKey) => sha256("hushrec device 1", publicKey).slice(0, 32);
const signedText = (method, target, run, device, nonce, body) =>
  ["hushrec request 2", method, target, run, device, nonce, sha256(body)].join("\n");
const authorization = (key, method, target, run, device, nonce, body) => {
  const signature = sign(null, Buffer.from(signedText(method, target, run, device, nonce, body)), key);
  return `Hushrec ${device}:${nonce}:${signature.toString("base64url")}`;
};

// The maths of a report ---------------------------------------------------------------------------------------------

const uniform = () => (randomBytes(4).readUInt32BE() * 2 ** 21 + (randomBytes(4).readUInt32BE() >>> 11)) / 2 ** 53;
const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
const dot = (a, b) => a.reduce((sum, value, n) => sum + value * b[n], 0);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function calibrate(h, m, z, epsilonI, epsilonP) {
  const [A, y] = [Math.expm1(epsilonI / h), epsilonP / (2 * h)];
  const b = m + (h - z) * A;
  const unrated = (Math.sqrt(b * b + 4 * (m - h) * A * z) - b) / (2 * (m - h) * A);
  const rated = (unrated * (1 + A)) / (1 + A * unrated);
  const f = 2 / (1 + Math.exp(y));
  const p = ((1 - f / 2) * unrated - (f / 2) * rated) / (1 - f);
  const q = ((1 - f / 2) * rated - (f / 2) * unrated) / (1 - f);
  if (!(p >= 0 && p <= 1 && q >= 0 && q <= 1)) throw new Error("this budget is impossible");
  return { f, p, q };
}

function below(x) {
  // Φ(x): the series around 0, and the continued fraction in the tail
  if (Math.abs(x) < 4) {
    let [sum, term] = [x, x];
    for (let n = 3; Math.abs(term) > 1e-17 * Math.abs(sum); n += 2) sum += term *= (x * x) / n;
    return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
  }
  let tail = Math.abs(x);
  for (let n = 60; n > 0; n -= 1) tail = Math.abs(x) + n / tail;
  const upper = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI) / tail;
  return x > 0 ? 1 - upper : upper;
}

function fakeErrorBound(mu, s, epsilonG) {
  let [low, high] = [0, Math.abs(mu) + 40 * s];
  for (let n = 0; n < 200; n += 1) {
    const middle = (low + high) / 2;
    if (below((middle - mu) / s) - below((-middle - mu) / s) < Math.exp(-epsilonG)) low = middle;
    else high = middle;
  }
  return high;
}

function fakeError(mu, s, alpha) {
  // Truncated to [−α, α], by the inverse of Φ: bisection needs no formula.
  if (s === 0) return mu;
  const [first, last] = [below((-alpha - mu) / s), below((alpha - mu) / s)];
  const wanted = first + uniform() * (last - first);
  let [low, high] = [-alpha, alpha];
  for (let n = 0; n < 100; n += 1) {
    const middle = (low + high) / 2;
    if (below((middle - mu) / s) < wanted) low = middle;
    else high = middle;
  }
  return low;
}

const stepSize = (terms, round) => terms.step / terms.data_weight / round ** terms.decay;
const errorsOf = (rated, ratings, user, table) => rated.map((item, n) => ratings[n] - dot(user, table[item]));
const rowWithoutNoise = (error, user, vector, terms, eta) =>
  user.map((u, k) => eta * (terms.data_weight * error * u - terms.item_regularization[k] * vector[k]));
const userWithoutNoise = (errors, rated, user, table, terms, eta) =>
  user.map((u, k) => u + eta * (terms.data_weight * mean(errors.map((e, n) => e * table[rated[n]][k])) - terms.user_regularization[k] * u));

function drawPermanent(offer, rated, epsilonI) {
  const { n_items: m, reports_per_client: z } = offer.terms;
  const cap = offer.options.profile_cap;
  const probabilities = calibrate(cap, m, z, epsilonI, 2 * epsilonI);
  const order = rated.map((item) => [uniform(), item]).sort((a, b) => a[0] - b[0]);
  const counted = new Set(order.slice(0, cap).map(([, item]) => item));
  const bits = Array.from({ length: m }, (_, item) => counted.has(item) !== uniform() < probabilities.f / 2);
  return { bits, ...probabilities };
}

const mostItems = ({ n_items: m, reports_per_client: z }) => Math.min(m, Math.ceil(z + 6 * Math.sqrt(z) + 12));

function randomPart(items, most) {
  const order = items.map((item) => [uniform(), item]).sort((a, b) => a[0] - b[0]);
  return order.slice(0, most).map(([, item]) => item).sort((a, b) => a - b);
}

function scaledDown(numbers, largest) {
  const norm = Math.sqrt(dot(numbers, numbers));
  return largest === null || norm <= largest ? numbers : numbers.map((number) => number * (largest / norm));
}

function makeReport(terms, round, table, largest, person) {
  const { rated, ratings, user, permanent, epsilonG } = person;
  const eta = stepSize(terms, round);
  const real = errorsOf(rated, ratings, user, table);
  const mu = mean(real);
  const s = Math.sqrt(mean(real.map((e) => (e - mu) ** 2)));
  const alpha = s === 0 ? 0 : fakeErrorBound(mu, s, epsilonG);
  const selected = permanent.bits.flatMap((bit, item) => (uniform() < (bit ? permanent.q : permanent.p) ? [item] : []));
  const items = randomPart(selected, mostItems(terms));
  const gradients = items.flatMap((item) => {
    const error = rated.includes(item) ? real[rated.indexOf(item)] : fakeError(mu, s, alpha);
    return rowWithoutNoise(error, user, table[item], terms, eta).map((number) => number + Math.sqrt(eta) * normal());
  });
  return { items, gradients: scaledDown(gradients, largest) };
}

// A device ----------------------------------------------------------------------------------------------------------

class Device {
  constructor(url) {
    this.url = url;
    this.key = generateKeyPairSync("ed25519").privateKey;
    this.id = deviceId(rawPublic(this.key));
    this.nonce = 0n;
  }

  async ask(method, target, status, { body = Buffer.alloc(0), run = null } = {}) {
    const headers = { "Content-Type": "application/msgpack" };
    if (run !== null) {
      const now = BigInt(Date.now()) * 1_000_000n;
      this.nonce = now > this.nonce ? now : this.nonce + 1n;
      headers.Authorization = authorization(this.key, method, target, run, this.id, this.nonce, body);
    }
    const reply = await fetch(this.url + target, { method, headers, body: body.length ? body : undefined });
    const content = Buffer.from(await reply.arrayBuffer());
    if (reply.status === 204 && method === "GET") return null;
    if (reply.status !== status) throw new Error(`${method} ${target}: ${reply.status} ${content}`);
    return content;
  }

  async enrol() {
    const offer = decode(await this.ask("GET", "/v1/run", 200), "offer");
    if (offer.protocol !== "sdcf" || offer.model !== "mf" || offer.terms.type !== "gradient.terms") throw new Error("another protocol or model");
    const body = encode("enrolment", { public_key: rawPublic(this.key), invitation: null });
    decode(await this.ask("POST", "/v1/devices", 201, { body, run: offer.run_id }), "offer");
    this.offer = offer;
    this.ids = [];
    while (this.ids.length < offer.terms.n_items) {
      this.ids.push(...decode(await this.ask("GET", `/v1/items?first=${this.ids.length}`, 200), "catalogue").ids);
    }
  }

  async round() {
    for (;;) {
      const body = await this.ask("GET", "/v1/inbox?after=0&wait=30", 200, { run: this.offer.run_id });
      if (body !== null) return decode(body, "envelope");
    }
  }

  async report(given) {
    const rated = this.ids.flatMap((id, item) => (id in given ? [item] : []));
    const ratings = rated.map((item) => given[this.ids[item]]);
    const user = Array.from({ length: this.offer.terms.n_factors }, () => uniform() * 0.3 * Math.sqrt(50 / this.offer.terms.n_factors));
    const person = { rated, ratings, user, permanent: drawPermanent(this.offer, rated, 4), epsilonG: 4 };
    const { run_id, round_number, attempt, phase, message } = await this.round();
    if (run_id !== this.offer.run_id || message.type !== "gradient.item-vectors") throw new Error("not what was accepted");
    const terms = { ...message.terms };
    for (const name of ["user_regularization", "item_regularization"]) terms[name] = floats(terms[name]);
    const table = rows(message.item_vectors);
    const { items, gradients } = makeReport(terms, round_number, table, message.max_report_norm, person);
    const report = { type: "gradient.report", round_number, items: uint32(items), gradients: [table[0].length, float32(gradients)] };
    const body = encode("envelope", { run_id, round_number, attempt, phase, message: report });
    const receipts = [];
    for (let time = 0; time < 2; time += 1) {
      receipts.push(decode(await this.ask("POST", "/v1/reports", 200, { body, run: run_id }), "receipt"));
    }
    return { device: this.id, round_number, items, gradients: Array.from(Float32Array.from(gradients)), receipts };
  }
}

// The test vectors --------------------------------------------------------------------------------------------------

const same = (what, found, wanted) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what}: ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
};
const near = (what, found, wanted) => {
  if (!(Math.abs(found - wanted) <= 1e-9 * Math.abs(wanted))) throw new Error(`${what}: ${found}, not ${wanted}`);
};

// A value of the vectors as it is packed.
function wired(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(wired);
  if ("hex" in value) return Buffer.from(value.hex, "hex");
  if ("float32" in value || "uint32" in value) {
    const buffer = "uint32" in value ? uint32(value.uint32) : float32(value.float32);
    return "width" in value ? [value.width, buffer] : buffer;
  }
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, wired(inner)]));
}

function checkVectors(vectors) {
  let checked = 0;
  const check = (compare, ...given) => { compare(...given); checked += 1; };
  const { secret_key, public_key, id } = vectors.device;
  const pkcs8 = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), Buffer.from(secret_key, "hex")]);
  const key = createPrivateKey({ key: pkcs8, format: "der", type: "pkcs8" });
  check(same, "public key", rawPublic(key).toString("hex"), public_key);
  check(same, "device id", deviceId(Buffer.from(public_key, "hex")), id);
  for (const { method, target, body, run_id, nonce, text, authorization: wanted } of vectors.signatures) {
    const given = [method, target, run_id, id, nonce, Buffer.from(body.hex, "hex")];
    check(same, "signed text", signedText(...given), text);
    check(same, "header", authorization(key, ...given), wanted);
  }
  for (const [name, { message, hex }] of Object.entries(vectors.messages)) {
    const { type, ...fields } = wired(message);
    check(same, name, unpack(Buffer.from(hex, "hex")), { type, version: VERSION, ...fields });
    if (["enrolment", "report"].some((sent) => name.includes(sent))) check(same, name, encode(type, fields).toString("hex"), hex);
  }
  for (const { profile_cap, n_items, reports_per_client, epsilon_i, epsilon_p, ...wanted } of vectors.sdcf.selections) {
    const found = calibrate(profile_cap, n_items, reports_per_client, epsilon_i, epsilon_p);
    for (const name of ["f", "p", "q"]) check(near, name, found[name], wanted[name]);
  }
  for (const { mean: mu, deviation, epsilon_g, alpha } of vectors.sdcf.fake_error_bounds) {
    check(near, "alpha", fakeErrorBound(mu, deviation, epsilon_g), alpha);
  }
  const round = vectors.sdcf.round;
  const terms = { ...round.terms };
  for (const name of ["user_regularization", "item_regularization"]) terms[name] = terms[name].float32;
  const { width, float32: numbers } = round.item_vectors;
  const table = Array.from({ length: numbers.length / width }, (_, n) => numbers.slice(n * width, (n + 1) * width));
  const eta = stepSize(terms, round.round_number);
  check(near, "eta", eta, round.eta);
  const errors = errorsOf(round.rated, round.ratings, round.user_vector, table);
  errors.forEach((error, n) => check(near, "error", error, round.errors[n]));
  round.selected.forEach((item, n) => {
    const error = round.rated.includes(item) ? errors[round.rated.indexOf(item)] : round.fake_error;
    rowWithoutNoise(error, round.user_vector, table[item], terms, eta).forEach((number, k) => check(near, "row", number, round.rows_without_noise[n][k]));
  });
  const scaled = scaledDown(round.rows_without_noise.flat(), round.max_report_norm);
  scaled.forEach((number, n) => check(near, "scaled row", number, round.scaled_rows.flat()[n]));
  userWithoutNoise(errors, round.rated, round.user_vector, table, terms, eta).forEach((number, k) =>
    check(near, "user vector", number, round.user_vector_without_noise[k]));
  return checked;
}

const [, , command, place, ratings] = process.argv;
if (command === "vectors") {
  console.log(JSON.stringify({ checked: checkVectors(JSON.parse(readFileSync(place, "utf8"))) }));
} else {
  const device = new Device(place);
  await device.enrol();
  console.log(JSON.stringify(await device.report(JSON.parse(ratings))));
}
