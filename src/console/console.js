// Keeps a page of the console current: it fetches the page again every second and changes what differs,
// so that focus, selection and scroll positions stay. Text is only ever set as text.

const REFRESH_MS = 1000;
const TIMEOUT_MS = 5000;
const FEED_ROWS_MAX = 200;
const ERRORS_SHOWN_MAX = 5;
const TOKEN = "tollgate-token";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let lastAnswer = new Date();
let refreshing = false;
// Names of pods by those of replicas in heartbeats.
const pods = new Map();

// Makes an element like another. Elements with an id are found again by it; the script owns what has
// data-keep.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const known = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = child.id ? known.get(child.id) : place && !place.id ? place : null;
    if (!same) {
      old.insertBefore(child, place);
      continue;
    }
    if (same === place) place = place.nextSibling;
    else old.insertBefore(same, place);
    if (!same.isEqualNode(child)) morph(same, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

async function refresh() {
  if (refreshing) return;
  refreshing = true;
  const address = location.href;
  // Of a page with a text that the script owns, the page without it.
  const source = main.querySelector("[data-refresh]")?.dataset.refresh ?? address;
  try {
    const response = await fetch(source, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("main");
    if (!fresh) throw new Error("not a page of the console");
    connection.hidden = true;
    lastAnswer = new Date();
    if (address === location.href) {
      morph(document.getElementById("status"), page.getElementById("status"));
      morph(main, fresh);
    }
  } catch {
    connection.textContent = `This replica does not answer. The page is of ${clockTime(lastAnswer)}.`;
    connection.hidden = false;
  } finally {
    refreshing = false;
  }
}

setInterval(() => {
  if (!document.hidden) refresh();
}, REFRESH_MS);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});

// Searches while typing; the URL follows.
const search = document.querySelector("form[data-live]");
if (search) {
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", `${search.getAttribute("action")}?${new URLSearchParams(new FormData(search))}`);
      refresh();
    }, 150);
  });
}

// The feed of decisions over limit.
const feed = document.getElementById("feed");
if (feed) {
  const state = document.getElementById("feed-state");
  const pause = document.getElementById("feed-pause");
  for (const element of [state, pause]) element.setAttribute("data-keep", "");
  let isPaused = false;
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Resume" : "Pause";
  });
  const events = new EventSource(feed.dataset.source);
  events.addEventListener("open", () => (state.textContent = "Connected."));
  events.addEventListener("error", () => (state.textContent = "Not connected; trying again."));
  events.addEventListener("message", (event) => {
    feedEvent(JSON.parse(event.data), isPaused);
  });
}

// A response of OVER_LIMIT, or with scope=fleet the replicas that are followed.
function feedEvent(event, isPaused) {
  if (event.replicas) return showFollowed(event);
  if (isPaused) return;
  document.getElementById("feed-none").hidden = true;
  feed.prepend(feedRow(event));
  while (feed.children.length > FEED_ROWS_MAX) feed.lastChild.remove();
}

function showFollowed({ replicas, missing }) {
  for (const { replica, pod } of [...replicas, ...missing]) pods.set(replica, pod);
  const all = replicas.length + missing.length;
  const names = missing.map(({ pod }) => pod).join(", ");
  const covered = missing.length ? `${replicas.length} of ${all} replicas; ${names} did not answer, trying again` : `${all} ${all === 1 ? "replica" : "replicas"}`;
  document.getElementById("feed-replicas").textContent = covered;
}

function feedRow({ replica, time, domain, rule, descriptor, limit, retry_after_seconds: retryAfter, decided_by: decidedBy }) {
  const row = document.createElement("tr");
  row.className = "new";
  cell(row, clockTime(new Date(time)));
  if (feed.dataset.scope === "fleet") cell(row, pods.get(replica) ?? replica);
  const entries = (descriptor ?? []).map(([key, value]) => `${key}=${value}`);
  const ruleUrl = `/console/rule?${new URLSearchParams({ domain, rule: rule ?? "" })}`;
  if (rule) link(cell(row, ""), ruleUrl, rule);
  else cell(row, "–");
  const keyUrl = new URLSearchParams([["domain", domain], ...entries.map((entry) => ["e", entry])]);
  // The counter of a hash is not that of its value.
  if (feed.hasAttribute("data-redacted")) cell(row, entries.join(", "));
  else link(cell(row, ""), `/console/key?${keyUrl}`, entries.join(", "));
  cell(row, limit);
  cell(row, retryAfter === undefined ? "never" : `${retryAfter} s`);
  cell(row, decidedBy);
  return row;
}

// The time of the day in UTC, as the service renders it.
function clockTime(date) {
  return date.toISOString().slice(11, 19);
}

// The bar under the pointer, below its chart.
document.addEventListener("pointerover", ({ target }) => {
  if (!(target instanceof Element)) return;
  const bar = target.closest(".chart g");
  const readout = target.closest(".chart")?.querySelector(".readout");
  if (readout) readout.textContent = bar?.querySelector("title").textContent ?? "";
});

function cell(row, text) {
  const cell = row.insertCell();
  cell.textContent = text;
  return cell;
}

function link(cell, href, text) {
  const anchor = document.createElement("a");
  anchor.href = href;
  anchor.textContent = text;
  cell.append(anchor);
}

// Reset, Grant, Apply and Roll back: a dialog asks for what is missing, and sends it.
document.addEventListener("click", ({ target }) => {
  if (!(target instanceof Element)) return;
  const opener = target.closest("[data-dialog]");
  if (opener) open(document.getElementById(opener.dataset.dialog));
  target.closest("[data-cancel]")?.closest("dialog").close();
});
document.addEventListener("submit", (event) => {
  const dialog = event.target.closest("dialog");
  if (!dialog) return;
  event.preventDefault();
  send(dialog);
});

function open(dialog) {
  const token = dialog.querySelector("input[type=password]");
  const isKnown = sessionStorage.getItem(TOKEN) !== null;
  token.closest("label").hidden = isKnown;
  token.required = !isKnown;
  token.value = "";
  dialog.dataset.key = crypto.randomUUID ? crypto.randomUUID() : `${Date.now()}-${Math.random()}`;
  showError(dialog, "");
  dialog.showModal();
}

// The request of a dialog for a counter. Scripts of other views set `request` and `done` of their forms.
function counterRequest(form, dialog) {
  const hits = dialog.querySelector("input[type=number]");
  const body = { domain: form.dataset.domain, descriptor: JSON.parse(form.dataset.descriptor) };
  if (hits) body.hits = Number(hits.value);
  const headers = { "content-type": "application/json", "idempotency-key": dialog.dataset.key };
  return { address: form.dataset.action, method: "POST", headers, body: JSON.stringify(body), timeout: TIMEOUT_MS };
}

function counterDone({ before, after, note }, form) {
  const result = document.getElementById("result");
  const now = after ? `${after.used} now` : note;
  result.textContent = `${form.dataset.done}: ${before.used} used before, ${now}.`;
}

async function send(dialog) {
  const form = dialog.querySelector("form");
  const token = dialog.querySelector("input[type=password]");
  const confirm = form.querySelector("button.primary");
  if (token.value) sessionStorage.setItem(TOKEN, token.value);
  const { address, headers, timeout, ...request } = (form.request ?? counterRequest)(form, dialog);
  confirm.disabled = true;
  try {
    const response = await fetch(address, {
      ...request,
      headers: { ...headers, authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` },
      signal: AbortSignal.timeout(timeout),
    });
    const answer = await response.json().catch(() => ({}));
    if (response.ok) {
      dialog.close();
      (form.done ?? counterDone)(answer, form);
      refresh();
      return;
    }
    // 429 is the answer to a wrong token after many of them.
    const isWrong = response.status === 401 || response.status === 429;
    if (isWrong) {
      sessionStorage.removeItem(TOKEN);
      token.closest("label").hidden = false;
      token.required = true;
      token.value = "";
      token.focus();
    }
    showError(dialog, response.status === 401 ? "Wrong token." : reasonOf(answer) || `Failed with status ${response.status}.`);
  } catch {
    showError(dialog, "This replica does not answer.");
  } finally {
    confirm.disabled = false;
  }
}

// The reason, and the first errors of rules.
function reasonOf({ error, errors }) {
  const shown = (errors ?? []).slice(0, ERRORS_SHOWN_MAX);
  const lines = shown.map(({ file, line, message }) => (file ? `${file}:${line}: ${message}` : message));
  return [error, ...lines].filter(Boolean).join("\n");
}

function showError(dialog, text) {
  const error = dialog.querySelector(".error");
  error.textContent = text;
  error.hidden = text === "";
}
