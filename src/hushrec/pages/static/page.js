// Helpers of both pages: finding and making elements, formatting numbers, and confirmation dialogs.

export const find = (selector) => document.querySelector(selector);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function fill(selector, ...children) {
  find(selector).replaceChildren(...children);
}

export function say(selector, text) {
  const element = find(selector);
  if (element && element.textContent !== text) element.textContent = text;
}

// Isolates foreign text such as a title, so that its writing direction cannot affect the sentence around it.
export const title = (text) => make("bdi", {}, text);
export const isolate = (text) => `\u2068${text}\u2069`; // the same for attributes

export const count = (value) => Math.round(value).toLocaleString("en");

export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function bytes(value) {
  if (value < 1000) return `${count(value)}\u00a0B`;
  const units = ["kB", "MB", "GB", "TB"];
  let unit = -1;
  do { value /= 1000; unit += 1; } while (value >= 1000 && unit < units.length - 1);
  return `${value >= 100 ? count(value) : Number(value.toPrecision(3))}\u00a0${units[unit]}`;
}

export function seconds(value) {
  if (value < 1) return `${round2(1000 * value)}\u00a0ms`;
  if (value < 120) return `${round2(value)}\u00a0s`;
  return value < 7200 ? `${count(value / 60)}\u00a0min` : `${count(value / 3600)}\u00a0h`;
}

// Two significant digits, without an exponent.
function round2(value) {
  return value >= 10 ? count(value) : String(Number(value.toPrecision(2)));
}

export function percent(share) {
  return `${round2(100 * share)}\u00a0%`;
}

// Fills a list with sentences, unless it holds the same sentences already.
export function items(selector, texts) {
  const old = [...find(selector).children].map((item) => item.textContent);
  if (old.join("\n") !== texts.join("\n")) fill(selector, ...texts.map((text) => make("li", {}, text)));
}

export function setBar(selector, share, text) {
  const bar = find(selector);
  const value = Math.max(0, Math.min(1, share || 0));
  bar.firstElementChild.style.width = `${100 * value}%`;
  bar.setAttribute("aria-valuenow", Math.round(100 * value));
  bar.setAttribute("aria-valuetext", text);
}

// Opens the page's dialog and resolves to true if the person confirms. The focus starts on the cancel button.
export function confirm(title, text, yes, { danger = false } = {}) {
  const dialog = find("#confirm");
  find("#confirm-yes").className = danger ? "main danger" : "main";
  say("#confirm-title", title);
  say("#confirm-text", text);
  say("#confirm-yes", yes);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.returnValue = "no";
    find("#confirm-yes").onclick = () => dialog.close("yes");
    find("#confirm-no").onclick = () => dialog.close("no");
    dialog.showModal();
    find("#confirm-no").focus();
  });
}
