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

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token === null ? {} : { authorization: `Bearer ${token}` };
}

async function refresh() {
  if (refreshing) return;
  refreshing = true;
  const address = location.href;
  // Of a page with a text that the script owns, the page without it.
  const source = main.querySelector("[data-refresh]")?.dataset.refresh ?? address;
  try {
    const response = await fetch(source, { cache: "no-store", headers: authorization(), signal: AbortSignal.timeout(TIMEOUT_MS) });
    // Without the wrong token the page has no values.
    if (response.status === 401 || response.status === 429) return sessionStorage.removeItem(TOKEN);
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
  follow(feed.dataset.source, state, (event) => {
    if (isPaused || !isWanted(event)) return;
    document.getElementById("feed-none").hidden = true;
    feed.prepend(feedRow(event));
    while (feed.children.length > FEED_ROWS_MAX) feed.lastChild.remove();
  });
}

// Reads server-sent events for as long as the page is open: an EventSource cannot send the token.
async function follow(source, state, receive) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const ended = new AbortController();
    // Another token shows other values.
    const watch = setInterval(() => sessionStorage.getItem(TOKEN) !== token && ended.abort(), REFRESH_MS);
    try {
      const response = await fetch(source, { headers: authorization(), signal: ended.signal });
      if (!response.ok) throw new Error(`status ${response.status}`);
      state.textContent = "Connected.";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        const events = (text + read.value).split("\n\n");
        text = events.pop();
        for (const event of events) {
          if (event.startsWith("data: ")) receive(JSON.parse(event.slice("data: ".length)));
        }
      }
    } catch {
      // It is fetched again.
    }
    clearInterval(watch);
    state.textContent = "Not connected; trying again.";
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

// Whether an event is one that the filters of the page ask for; a key is KEY or KEY=VALUE.
function isWanted({ type, domain, rule, descriptor }) {
  const wanted = feed.dataset;
  return (
    type === "over_limit" &&
    (!wanted.domain || wanted.domain === domain) &&
    (!wanted.rule || wanted.rule === rule) &&
    (!wanted.key || descriptor.some(([key, value]) => wanted.key === key || wanted.key === `${key}=${value}`))
  );
}

function feedRow({ time, domain, rule, descriptor, limit, retry_after_seconds: retryAfter, source }) {
  const row = document.createElement("tr");
  row.className = "new";
  cell(row, clockTime(new Date(time)));
  const entries = descriptor.map(([key, value]) => `${key}=${value}`);
  const ruleUrl = `/console/rule?${new URLSearchParams({ domain, rule: rule ?? "" })}`;
  if (rule) link(cell(row, ""), ruleUrl, rule);
  else cell(row, "–");
  const keyUrl = new URLSearchParams([["domain", domain], ...entries.map((entry) => ["e", entry])]);
  const key = clamped(entries.join(", "));
  if (feed.dataset.values === "drop" && sessionStorage.getItem(TOKEN) === null) cell(row, key);
  else link(cell(row, ""), `/console/key?${keyUrl}`, key);
  cell(row, limit);
  cell(row, retryAfter === undefined ? "never" : `${retryAfter} s`);
  cell(row, source);
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

function cell(row, content) {
  const cell = row.insertCell();
  cell.append(content);
  return cell;
}

function link(cell, href, content) {
  const anchor = document.createElement("a");
  anchor.href = href;
  anchor.append(content);
  cell.append(anchor);
}

// A text of clients, which may be long, in a few lines. All of it is in the tooltip.
function clamped(text) {
  const span = document.createElement("span");
  span.className = "clamp";
  span.title = text;
  span.textContent = text;
  return span;
}

// Reset, Grant and Apply: a dialog asks for what is missing, and sends it.
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
  showError(dialog, "");
  dialog.showModal();
}

// The token of a dialog without an action only shows values.
const revealRequest = () => ({ address: location.href, headers: {}, timeout: TIMEOUT_MS });

// The request of a dialog for a counter. Scripts of other views set `request` and `done` of their forms.
function counterRequest(form, dialog) {
  const hits = dialog.querySelector("input[type=number]");
  const body = { domain: form.dataset.domain, descriptor: JSON.parse(form.dataset.descriptor) };
  if (hits) body.hits = Number(hits.value);
  const headers = { "content-type": "application/json" };
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
  const requestOf = form.request ?? (form.dataset.action ? counterRequest : revealRequest);
  const { address, headers, timeout, ...request } = requestOf(form, dialog);
  confirm.disabled = true;
  try {
    const response = await fetch(address, {
      ...request,
      headers: { ...headers, ...authorization() },
      signal: AbortSignal.timeout(timeout),
    });
    const answer = await response.json().catch(() => ({}));
    if (response.ok) {
      dialog.close();
      if (requestOf !== revealRequest) (form.done ?? counterDone)(answer, form);
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
