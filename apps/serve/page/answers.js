// Turns the text of an answer into elements. The text is a stranger's: HTML in it is shown as text, what Markdown
// makes of it is sanitised, and the page's policy lets no script run but the server's own files.
const {marked, DOMPurify, hljs} = window;

const TAGS = ("a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul")
  .split(" ");
const ALLOWED = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

const escaped = text => text.replace(/[&<>"']/g, character => "&#" + character.charCodeAt(0) + ";");
marked.use({
  gfm: true,
  renderer: {
    html: token => escaped(token.text),
    image: token => escaped(token.raw),
    checkbox: token => token.checked ? "☑ " : "☐ ",
  },
});
DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

const clean = html => DOMPurify.sanitize(html, ALLOWED);

export function showMarkdown(place, text) {
  place.innerHTML = clean(marked.parse(text));
  for (const code of place.querySelectorAll("pre > code")) frame(code);
}

function frame(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1] || "";
  const text = code.textContent;
  if (hljs.getLanguage(language))
    code.innerHTML = clean(hljs.highlight(text, {language, ignoreIllegals: true}).value);
  const box = document.createElement("div"), head = document.createElement("div");
  box.className = "code";
  head.append(language || "code", copyButton("Copy", "Copy this code", text));
  code.parentElement.replaceWith(box);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;  // long lines scroll by keyboard
  pre.append(code);
  box.append(head, pre);
}

export function copyButton(label, name, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.setAttribute("aria-label", name);
  button.addEventListener("click", async () => {
    button.textContent = await copied(text) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

// Pages of plain HTTP from other machines have no clipboard; the older way still works there.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

// The target model's own text is plain; each drafter has a colour, of its name.
export function showPieces(place, pieces, legend) {
  place.classList.add("plain");
  place.replaceChildren(...pieces.map(([text, origin]) => isDrafted(origin) ? coloured(text, origin) : text));
  for (const origin of new Set(pieces.map(piece => piece[1]).filter(isDrafted)))
    if (![...legend.children].some(one => one.textContent === origin)) legend.append(coloured(origin, origin));
}

const isDrafted = origin => Boolean(origin) && origin !== "target";

function coloured(text, origin) {
  const span = document.createElement("span");
  span.className = "drafted";
  span.title = "drafted by " + origin;
  span.textContent = text;
  let hue = 0;
  for (const letter of origin) hue = (hue * 31 + letter.charCodeAt(0)) % 360;
  span.style.setProperty("--hue", hue);
  return span;
}
