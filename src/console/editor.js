// The editor of a rules file: checks the text while an operator types, shows what a change would do, and
// applies it after a dialog. Text is only ever set as text.

const CHECK_DELAY_MS = 300;
const RETRY_MS = 1000;
const TIMEOUT_MS = 15000;
// The service waits for other changes, and for the reload.
const APPLY_TIMEOUT_MS = 30000;
const LINES_SHOWN_MAX = 20000;
const SVG = "http://www.w3.org/2000/svg";

const editor = document.getElementById("editor");
const text = document.getElementById("text");
const lines = document.getElementById("lines");
const verdict = document.getElementById("verdict");
const discard = document.getElementById("discard");
// Absent where files cannot be changed.
const apply = document.getElementById("apply");
const applied = document.getElementById("applied");
const api = `/api/v1/rules/${encodeURIComponent(editor.dataset.file)}`;
let saved = text.value;
let typing = 0;
let checking = false;
let again = false;
// Whether the text shows the line that matters; later the operator decides.
let isPlaced = false;

// Makes an element with properties, classes and children, which are elements or texts.
function make(name, properties, ...children) {
  const element = document.createElement(name);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

function show(id, ...content) {
  const place = document.getElementById(id);
  place.replaceChildren(...content);
  const section = place.closest("section");
  if (section.hasAttribute("aria-labelledby")) section.hidden = content.length === 0 && id !== "messages";
}

function plural(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem("tollgate-token");
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch(api + path, {
    method: "POST",
    body: text.value,
    headers: { "content-type": "application/yaml", ...authorization },
    signal: AbortSignal.timeout(TIMEOUT_MS),
    ...options,
  });
  const answer = await response.json().catch(() => ({}));
  return { status: response.status, ok: response.ok, answer };
}

// One check at a time: the text may have changed when it ends, and is then checked again.
async function check() {
  if (checking) {
    again = true;
    return;
  }
  checking = true;
  again = false;
  verdict.textContent = "Checking…";
  try {
    const checked = text.value;
    const { status, ok, answer } = await send("/check");
    if (status === 429) {
      again = true;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    } else if (!ok) {
      verdict.textContent = answer.error ?? `The check failed with status ${status}.`;
    } else if (checked === text.value) {
      report(answer);
    }
  } catch {
    verdict.textContent = "This replica does not answer.";
  } finally {
    checking = false;
    if (again) check();
  }
}

function report(answer) {
  const { valid, errors, warnings, differences, keys } = answer;
  verdict.className = valid ? "state good" : "state bad";
  const parts = [valid ? "Valid" : plural(errors.length, "error")];
  if (warnings.length > 0) parts.push(plural(warnings.length, "warning"));
  if (valid) {
    const different = differences.length + answer.differences_left_out;
    parts.push(different === 0 ? "same as the rules in force" : plural(different, "rule") + " differ" + (different === 1 ? "s" : ""));
  }
  verdict.textContent = parts.join(", ");
  text.setAttribute("aria-invalid", String(!valid));
  const own = errors.filter(({ file }) => file === editor.dataset.file);
  drawLines(new Set(own.map(({ line }) => line)));
  // A rejected file opens at its first error.
  if (!isPlaced && own.length > 0 && text.value === saved) goTo(own[0].line ?? 1);
  isPlaced = true;
  const found = [...errors.map((one) => message("error", one)), ...warnings.map((one) => message("warning", one))];
  show("messages", found.length > 0 ? make("ol", { className: "messages" }, ...found) : make("p", { className: "empty" }, "None."));
  show("differences", ...differencesOf(differences, answer.differences_left_out));
  show("keys", ...keysOf(keys, answer.keys_left_out));
  document.getElementById("simulation").closest("section").hidden = !valid;
}

function message(kind, { file, line, column, message, hint }) {
  const item = make("li", { className: kind });
  if (file === editor.dataset.file && line) {
    const place = make("button", { type: "button", className: "place" }, `Line ${line}, column ${column}`);
    place.addEventListener("click", () => goTo(line));
    item.append(place, " ");
  } else if (file) {
    item.append(make("code", {}, line ? `${file}:${line}` : file), " ");
  }
  item.append(make("span", {}, message));
  if (hint) item.append(make("span", { className: "dim" }, hint));
  return item;
}

function goTo(line) {
  const all = text.value.split("\n");
  const start = all.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus();
  text.setSelectionRange(start, start + (all[line - 1] ?? "").length);
  const height = parseFloat(getComputedStyle(text).lineHeight);
  text.scrollTop = Math.max(0, (line - 5) * height);
}

function drawLines(marked) {
  const number = Math.min(text.value.split("\n").length, LINES_SHOWN_MAX);
  const numbers = Array.from({ length: number }, (_, index) => {
    const isMarked = marked.has(index + 1);
    return make("span", { className: isMarked ? "bad" : "" }, `${index + 1}\n`);
  });
  lines.replaceChildren(...numbers);
  lines.scrollTop = text.scrollTop;
}

// The differences, as `tollgate diff` prints them.
function differencesOf(differences, leftOut) {
  if (differences.length === 0) return [];
  const items = differences.map(({ change, rule, before, after, counter_restarts }) => {
    const item = make("li", {}, make("span", { className: `tag ${change}` }, change), " ", make("strong", {}, rule));
    if (!before || !after) item.append(`: ${limitOf(after ?? before)}`);
    else item.append(...optionsOf(before, after));
    if (counter_restarts) item.append(make("span", { className: "near" }, "Its counters begin again."));
    return item;
  });
  if (leftOut > 0) items.push(make("li", { className: "dim" }, `and ${plural(leftOut, "other rule")}`));
  return [make("ul", { className: "messages" }, ...items)];
}

function limitOf({ requests_per_unit: requests, unit, unit_multiplier: many, algorithm, rate_limit: none }) {
  if (none === null) return "no rate_limit, not limited";
  if (requests === undefined) return "unlimited";
  const period = !unit ? "at once" : many > 1 ? `per ${many} ${unit}s` : `per ${unit}`;
  return `${requests} ${period}, ${algorithm}`;
}

function optionsOf(before, after) {
  const left = ["source", "option_sources", "period_seconds"];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => !left.includes(name));
  const value = (side, name) => (side[name] === undefined ? "not set" : typeof side[name] === "string" ? side[name] : JSON.stringify(side[name]));
  const changed = names.filter((name) => value(before, name) !== value(after, name));
  return changed.map((name) => make("span", { className: "option" }, make("code", {}, name), `: ${value(before, name)} → ${value(after, name)}`));
}

function keysOf(keys, leftOut) {
  if (keys.length === 0) return [];
  const head = ["Key", "Hits", "Before", "After", "Action"].map((title, index) => {
    const cell = make("th", { scope: "col", className: index === 1 ? "number" : "" }, title);
    return cell;
  });
  const rows = keys.map(({ domain, key, hits, before, after, counter_restarts }) => {
    const entries = key.map(([name, value]) => `${name}=${value}`);
    const simulate = make("button", { type: "button" }, "Simulate");
    simulate.setAttribute("aria-label", `Simulate ${entries.join(", ")}`);
    simulate.addEventListener("click", () => fillSimulation(domain, entries));
    const note = counter_restarts ? make("span", { className: "near" }, "counter begins again ") : "";
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, make("span", { className: "clamp", title: entries.join(", ") }, entries.join(", "))),
      make("td", { className: "number" }, String(hits)),
      make("td", {}, ...treatment(before)),
      make("td", {}, ...treatment(after)),
      make("td", {}, note, simulate),
    );
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  const more = leftOut > 0 ? [make("p", { className: "dim" }, `and ${plural(leftOut, "other key")}`)] : [];
  return [make("div", { className: "scroll", tabIndex: 0 }, table), ...more];
}

function treatment({ rule, limit, mode, over_limit }) {
  const state = over_limit ? [make("span", { className: "state bad" }, "over limit now")] : [];
  // What follows from the algorithm is left out.
  const short = (limit ?? "").replace(/, over-limit hits .*$/, "");
  const words = mode === "enforced" ? short : mode === "not_limited" ? "not limited" : `${short} (${mode})`;
  return [make("span", { title: rule ?? "no rule" }, words), " ", ...state];
}

// What a pattern of requests would get.
const simulation = document.getElementById("simulation");

function fillSimulation(domain, entries) {
  simulation.elements.domain.value = domain;
  simulation.elements.entries.value = entries.join("\n");
  simulation.requestSubmit();
  simulation.scrollIntoView({ block: "nearest" });
}

async function simulate() {
  const { domain, entries, traffic, rate, periods } = simulation.elements;
  const query = new URLSearchParams({
    domain: domain.value,
    traffic: traffic.value === "rate" ? rate.value : traffic.value,
    periods: periods.value,
  });
  for (const entry of entries.value.split("\n").filter((line) => line !== "")) query.append("e", entry);
  try {
    const { status, ok, answer } = await send(`/simulate?${query}`);
    if (ok) show("simulated", ...simulated(answer));
    else show("simulated", make("p", { className: "error" }, answer.error ?? `It failed with status ${status}.`));
  } catch {
    show("simulated", make("p", { className: "error" }, "This replica does not answer."));
  }
}

function simulated(answer) {
  const { requests, traffic, note, before, after } = answer;
  const all = `${plural(requests, "request")}, ${traffic}`;
  const parts = [make("p", { className: "dim" }, note ? `${all}; ${note}` : all)];
  for (const [name, side] of [
    ["Before", before],
    ["After", after],
  ]) {
    const limit = side.limit ? `${side.rule}: ${side.limit}` : `not limited: ${side.not_limited}`;
    const first = side.first_over_limit_ms === null ? "" : `, the first over limit after ${side.first_over_limit_ms / 1000} s`;
    const queued = side.queued > 0 ? `, ${side.queued} wait up to ${side.wait_max_ms} ms` : "";
    const passes = `${side.admitted} of ${requests} pass${first}${queued}`;
    const figure = make("figure", { className: "chart" }, make("p", {}, make("strong", {}, name), ` ${limit}. ${passes}.`));
    for (const note of side.notes) figure.append(make("p", { className: "dim" }, note));
    figure.append(chart(`${name}: ${passes}`, answer.requests_by_column, side.admitted_by_column));
    parts.push(figure);
  }
  parts.push(periodsOf(answer));
  return parts;
}

function chart(label, requests, admitted) {
  const most = Math.max(...requests, ...admitted, 1);
  const svg = svgElement("svg", { viewBox: `0 0 ${requests.length * 10} 60`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  requests.forEach((all, index) => {
    const over = Math.max(all - admitted[index], 0);
    const heights = [
      ["hits", admitted[index], 0],
      ["over", over, admitted[index]],
    ];
    for (const [name, count, below] of heights) {
      const [height, bottom] = [count, below].map((value) => Math.ceil((value * 60) / most));
      svg.append(svgElement("rect", { class: name, x: index * 10 + 1, y: Math.max(60 - bottom - height, 0), width: 8, height }));
    }
  });
  return svg;
}

function svgElement(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, String(value));
  return element;
}

function periodsOf({ period_ms, requests_by_period, before, after }) {
  const title = (words) => make("th", { scope: "col", className: words === "Period" ? "" : "number" }, words);
  const rows = requests_by_period.map((requests, index) => {
    const counts = [requests, before.admitted_by_period[index], after.admitted_by_period[index]];
    const name = `${index + 1}, from ${(index * period_ms) / 1000} s`;
    return make("tr", {}, make("th", { scope: "row" }, name), ...counts.map((count) => make("td", { className: "number" }, String(count))));
  });
  const head = make("thead", {}, make("tr", {}, ...["Period", "Requests", "Pass before", "Pass after"].map(title)));
  return make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, head, make("tbody", {}, ...rows)));
}

simulation.addEventListener("submit", (event) => {
  event.preventDefault();
  simulate();
});

function showRate() {
  document.getElementById("rate").hidden = simulation.elements.traffic.value !== "rate";
}
simulation.elements.traffic.addEventListener("change", showRate);
showRate();

const domain = text.value.match(/^domain:\s*["']?([^\s"'#]+)/m);
if (domain) simulation.elements.domain.value = domain[1];

function edited() {
  const isChanged = text.value !== saved;
  discard.hidden = !isChanged;
  if (apply) apply.disabled = !isChanged;
  drawLines(new Set());
  clearTimeout(typing);
  typing = setTimeout(check, CHECK_DELAY_MS);
}

text.readOnly = false;
text.addEventListener("input", edited);
text.addEventListener("scroll", () => (lines.scrollTop = text.scrollTop));
discard.addEventListener("click", () => {
  text.value = saved;
  edited();
  text.focus();
});
// Apply and Roll back: the dialogs of the page send these requests.
function changed({ version, etag }, what, text_in_force) {
  editor.dataset.etag = etag;
  saved = text_in_force;
  applied.textContent = `${what}: version ${version} is in force.`;
  edited();
}

if (apply) {
  const form = document.querySelector("#dialog-Apply form");
  let sent = "";
  form.request = () => {
    sent = text.value;
    const headers = { "content-type": "application/yaml", "if-match": editor.dataset.etag };
    return { address: api, method: "PUT", headers, body: sent, timeout: APPLY_TIMEOUT_MS };
  };
  form.done = (answer) => changed(answer, "Applied", sent);

  const rollback = document.querySelector("#dialog-Rollback form");
  let version = 0;
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("button[data-version]");
    if (!button) return;
    version = Number(button.dataset.version);
    document.getElementById("rollback-version").textContent = String(version);
  });
  rollback.request = () => {
    const headers = { "content-type": "application/json", "if-match": editor.dataset.etag };
    return { address: `${api}/rollback`, method: "POST", headers, body: JSON.stringify({ version }), timeout: APPLY_TIMEOUT_MS };
  };
  rollback.done = async (answer) => {
    const response = await fetch(api, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    text.value = await response.text();
    changed({ ...answer, etag: response.headers.get("etag") }, `Rolled back to the text of version ${version}`, text.value);
  };
  apply.hidden = false;
}

// Another operator, or another program, may change the file meanwhile.
const differs = document.getElementById("differs");
setInterval(() => {
  const now = document.getElementById("facts")?.dataset.etag;
  differs.hidden = !now || now === editor.dataset.etag;
}, CHECK_DELAY_MS);
document.getElementById("reload").addEventListener("click", () => {
  text.value = saved;
  location.reload();
});

addEventListener("beforeunload", (event) => {
  if (text.value !== saved) event.preventDefault();
});

function goToFragment() {
  const line = Number(location.hash.match(/^#L(\d+)$/)?.[1] ?? 0);
  if (line > 0) goTo(line);
  return line > 0;
}

drawLines(new Set());
check();
isPlaced = goToFragment();
addEventListener("hashchange", goToFragment);
