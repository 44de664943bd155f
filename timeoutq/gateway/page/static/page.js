// The page beyond links and forms: fresh fragments while it is seen, keys, and a question before an act.
// Nothing here builds HTML from data: fragments are written, and escaped, by the server.

const $ = (found, from = document) => from.querySelector(found);
const all = (found, from = document) => [...from.querySelectorAll(found)];
const alive = $("#alive");

// ---- fresh fragments: one stream while the page is seen, none while it is hidden

let stream = null;
let again = 0;
const fresh = {}; // fragments that have come and are not shown yet

function swap(id, html) {
  const place = document.getElementById(id);
  if (!place || place.contains(document.activeElement?.closest("dialog, textarea, select"))) return false;
  const held = document.activeElement;
  const inside = place.contains(held) ? nameOf(held) : null;
  const scrolled = all(".scroll, pre", place).map((one) => [one.scrollLeft, one.scrollTop]);
  const chosen = new Map(all("select", place).map((one) => [nameOf(one), one.value]));
  place.innerHTML = html;
  if (place.hidden && html) place.hidden = false;
  all(".scroll, pre", place).forEach((one, i) => scrolled[i] && one.scrollTo(...scrolled[i]));
  for (const one of all("select", place)) one.value = chosen.get(nameOf(one)) ?? one.value;
  if (inside) all("a, button, input, [tabindex]", place).find((one) => nameOf(one) === inside)?.focus({ preventScroll: true });
  return true;
}

// the same element before and after: where it leads, or what it would send
function nameOf(one) {
  const form = one.closest("form.one");
  const sent = form ? all("input", form).map((field) => field.value).join("\0") : "";
  return [one.tagName, one.id, one.getAttribute("href"), one.getAttribute("aria-label"), form?.getAttribute("action"), sent].join("\0");
}

function open() {
  const path = document.body.dataset.live;
  if (!path || stream || document.hidden) return;
  clearTimeout(again);
  stream = new EventSource(path);
  stream.addEventListener("parts", (event) => {
    for (const [id, html] of Object.entries(Object.assign(fresh, JSON.parse(event.data)))) if (swap(id, html)) delete fresh[id];
    say("live", true);
  });
  stream.addEventListener("over", () => later(1000));
  stream.addEventListener("crowded", (event) => later(20000, `not live: ${event.data}`));
  stream.addEventListener("error", () => later(5000));
}

function later(wait, words = "not live") {
  close();
  say(words);
  again = setTimeout(open, wait);
}

function close() {
  stream?.close();
  stream = null;
  clearTimeout(again);
}

function say(words, on = false) {
  if (alive.textContent !== words) alive.textContent = words;
  alive.classList.toggle("on", on);
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);

// ---- the question before an act

const ask = $("#ask");
let asking = null;

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  const form = event.target;
  if (!button?.dataset.ask || form.elements.sure) return;
  event.preventDefault();
  const chosen = all("tbody input:checked", form).length;
  const list = form.matches("#list"); // not form.id: that is a field of this name, if the form has one
  if (list && !chosen) return note("Choose a task first: x chooses the one in focus.");
  const asks = button.dataset.ask;
  const long = form.elements.for?.selectedOptions?.[0]?.textContent;
  const tasks = chosen === 1 ? "1 task" : `${chosen} tasks`;
  $("h2", ask).textContent = list ? asks.replace("{n}", tasks) : long ? asks.replace(/\{time\}\?$/, `${long}?`) : asks;
  asking = [form, button];
  ask.returnValue = "";
  ask.showModal();
});

ask.addEventListener("close", () => {
  if (ask.open) return; // it was opened again before this event came
  const [form, button] = asking ?? [];
  asking = null;
  if (!form || ask.returnValue !== "yes") return button?.focus();
  const sure = document.createElement("input");
  Object.assign(sure, { type: "hidden", name: "sure", value: "1" });
  form.append(sure);
  // a fragment may have come meanwhile, and with it another button of the same name
  if (form.isConnected) form.requestSubmit(button);
  else { form.hidden = true; document.body.append(form); form.requestSubmit(button); }
});

function note(words) {
  const place = $("#chosen") ?? alive;
  place.textContent = words;
}

// ---- choosing tasks of a list

const every = $("#all");
if (every) {
  every.hidden = false;
  every.addEventListener("change", () => { for (const box of all("tbody .box input")) box.checked = every.checked; count(); });
}
document.addEventListener("change", (event) => event.target.closest("tbody .box") && count());
const count = () => { const n = all("tbody .box input:checked").length; note(n ? `${n} chosen` : ""); };
addEventListener("pageshow", () => $("#list") && count());

// ---- keys: lower case looks, upper case acts (and asks)

const seen = (one) => one.checkVisibility?.() ?? one.offsetParent !== null;
const rows = () => all("main table.rows tbody tr").filter((row) => seen(row) && $("a, button, input", row));

function step(by) {
  const there = rows();
  if (!there.length) return;
  const now = there.findIndex((row) => row.contains(document.activeElement));
  const next = there[Math.max(0, Math.min(there.length - 1, now < 0 ? (by > 0 ? 0 : there.length - 1) : now + by))];
  ($("th a, td a", next) ?? $("a, button, input", next)).focus();
  next.scrollIntoView({ block: "nearest" });
}

function choose(wanted = null) {
  const box = document.activeElement?.closest("tr") && $(".box input", document.activeElement.closest("tr"));
  if (!box) return;
  box.checked = wanted ?? !box.checked;
  count();
}

function help() {
  const list = $("#help dl");
  const told = new Map([["j k", "next and previous row"], ["Enter", "open it"]]);
  if ($("#list")) told.set("x", "choose the row");
  for (const one of all("[data-key]").filter((one) => seen(one) || one.id === "keys")) told.set(one.dataset.key, one.dataset.says ?? one.textContent);
  list.replaceChildren(...[...told].flatMap(([key, says]) => {
    const [dt, dd, kbd] = ["dt", "dd", "kbd"].map((tag) => document.createElement(tag));
    kbd.textContent = key;
    dt.append(kbd);
    dd.textContent = says;
    return [dt, dd];
  }));
  $("#help").showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || $("dialog[open]")) return;
  if (event.target.closest("textarea, select, input:not([type=checkbox], [type=radio])")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const key = event.key;
  if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "x" && $("#list")) choose();
  else if (key === "?") help();
  else {
    const row = document.activeElement?.closest("tr");
    const found = (row && $(`[data-key="${CSS.escape(key)}"]`, row)) ?? all(`[data-key="${CSS.escape(key)}"]`).find(seen);
    if (!found) return;
    if (found.matches("#list button") && !$("tbody .box input:checked")) choose(true);
    if (found.matches("input")) found.focus();
    else found.click();
  }
  event.preventDefault();
});

const keys = $("#keys");
keys.hidden = false;
keys.addEventListener("click", help);
open();
