// The text of a rules file. The dialog of the page asks for the token, and sends what is set here.

// The service waits for other changes, and for the reload.
const APPLY_TIMEOUT_MS = 30000;
const COMPARE_MS = 300;

const editor = document.getElementById("editor");
const text = document.getElementById("text");
// Absent where files cannot be changed.
const apply = document.getElementById("apply");
let saved = text.value;

function edited() {
  apply.disabled = text.value === saved;
}

if (apply) {
  const applied = document.getElementById("applied");
  const form = document.querySelector("#dialog-Apply form");
  let sent = "";
  form.request = () => {
    sent = text.value;
    const headers = { "content-type": "application/yaml", "if-match": editor.dataset.etag };
    const address = `/api/v1/rules/${encodeURIComponent(editor.dataset.file)}`;
    return { address, method: "PUT", headers, body: sent, timeout: APPLY_TIMEOUT_MS };
  };
  form.done = ({ etag }) => {
    editor.dataset.etag = etag;
    saved = sent;
    applied.textContent = "Applied: this text is in force.";
    edited();
  };
  text.readOnly = false;
  text.addEventListener("input", () => {
    applied.textContent = "";
    edited();
  });
}

// Another operator, or another program, may change the file meanwhile.
const differs = document.getElementById("differs");
setInterval(() => {
  const now = document.getElementById("facts")?.dataset.etag;
  differs.hidden = !now || now === editor.dataset.etag;
}, COMPARE_MS);

addEventListener("beforeunload", (event) => {
  if (text.value !== saved) event.preventDefault();
});

// Selects the line that a message links to.
function goToFragment() {
  const line = Number(location.hash.match(/^#L(\d+)$/)?.[1] ?? 0);
  if (line === 0) return;
  const lines = text.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  text.scrollTop = (line - 4) * parseFloat(getComputedStyle(text).lineHeight);
}

goToFragment();
addEventListener("hashchange", goToFragment);
