import {copyButton, showMarkdown, showPieces} from "./answers.js";
import {events, modelNames} from "./client.js";
import * as conversations from "./conversations.js";

const SETTINGS = ["temperature", "top_p", "max_tokens", "seed"];
const REDRAW_MS = 80;
const PASSES = 16;  // whose speed says how long the rest of a prompt takes
const at = id => document.getElementById(id);
let open = conversations.all()[0] || conversations.create("");
let controller = null;

const element = (tag, className, ...inside) => {
  const found = document.createElement(tag);
  found.className = className;
  found.append(...inside);
  return found;
};

function button(label, name, act) {
  const found = element("button", "", label);
  found.type = "button";
  found.setAttribute("aria-label", name);
  found.addEventListener("click", act);
  return found;
}

const isColoured = () => at("colour").checked;
const say = text => { at("spoken").textContent = text; };
const toEnd = () => { at("log").scrollTop = at("log").scrollHeight; };
const isAtEnd = () => at("log").scrollHeight - at("log").scrollTop - at("log").clientHeight < 60;

// ---- the conversation on the page

function drawTurn(turn, place) {
  const isUser = turn.role === "user";
  const text = element("div", "text");
  const found = element("article", "turn " + (isUser ? "user" : "model"));
  found.append(element("h2", "", isUser ? "You" : turn.model || "Model"));
  if (turn.thought) found.append(element("div", "thought", turn.thought));
  found.append(text, actionsOf(turn, place));
  fillText(text, turn);
  return found;
}

function fillText(text, turn) {
  if (turn.role === "assistant" && isColoured() && turn.pieces) showPieces(text, turn.pieces, at("legend"));
  else if (turn.role === "assistant" && turn.mode === "chat" && !isColoured()) showMarkdown(text, turn.text);
  else {
    text.classList.add("plain");
    text.textContent = turn.text;
  }
}

function actionsOf(turn, place) {
  const found = element("div", "actions");
  if (turn.role === "user") found.append(button("Edit", "Edit this message and ask again", () => edit(place)));
  else found.append(button("Regenerate", "Write this answer again", () => regenerate(place)));
  found.append(copyButton("Copy", "Copy this text", turn.text));
  return found;
}

function draw() {
  at("legend").replaceChildren();
  at("log").replaceChildren(...open.turns.map(drawTurn));
  at("system").value = open.system;
  at("log").querySelectorAll(".actions button").forEach(one => { one.disabled = Boolean(controller); });
  listConversations();
  toEnd();
}

function edit(place) {
  const article = at("log").children[place];
  const area = element("textarea", "edited");
  area.value = open.turns[place].text;
  area.rows = Math.min(12, area.value.split("\n").length + 1);
  area.setAttribute("aria-label", "Message to change");
  const finish = () => { if (area.value.trim()) askFrom(place, area.value); };
  area.addEventListener("keydown", event => {
    if (event.key === "Escape") draw();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); finish(); }
  });
  const actions = element("div", "actions", button("Ask again", "Ask again with this text", finish),
    button("Cancel", "Leave the message as it was", draw));
  article.replaceChildren(area, actions);
  area.focus();
}

function regenerate(place) {
  const user = open.turns.slice(0, place).findLastIndex(turn => turn.role === "user");
  if (user >= 0) askFrom(user, open.turns[user].text);
}

// Forgets the turns from `place` on, and asks with `text` in their stead.
async function askFrom(place, text) {
  if (controller) return;
  const mode = open.turns[place]?.mode || at("mode").value;
  await ask(text, mode, open.turns.splice(place));
}

// ---- the list of conversations

function listConversations() {
  const kept = conversations.all();
  if (!kept.some(one => one.id === open.id)) kept.unshift(open);
  at("conversations").replaceChildren(...kept.map(one => {
    const name = conversations.title(one);
    const row = element("li", one.id === open.id ? "open" : "");
    const title = button(name, "Open: " + name, () => show(one));
    title.className = "title";
    if (one.id === open.id) title.setAttribute("aria-current", "true");
    row.append(title, button("×", "Delete: " + name, () => drop(one)));
    return row;
  }));
}

function show(conversation) {
  controller?.abort();
  open = conversation;
  at("state").textContent = "";
  showSide(false);
  draw();
  at("prompt").focus();
}

function drop(conversation) {
  if (!confirm("Delete “" + conversations.title(conversation) + "”?")) return;
  conversations.remove(conversation.id);
  if (conversation.id === open.id) show(conversations.all()[0] || conversations.create(open.system));
  else listConversations();
}

function keep() {
  try {
    conversations.save(open);
  } catch {
    showError("This browser keeps no more conversations: its storage is full or switched off. Delete some.");
  }
}

function showSide(isShown) {
  at("side").classList.toggle("shown", isShown);
  at("menu").setAttribute("aria-expanded", String(isShown));
}

// ---- asking

function bodyOf(text, mode) {
  const body = {model: at("model").value, stream: true};
  for (const id of SETTINGS) if (at(id).value !== "") body[id] = Number(at(id).value);
  if (body.max_tokens === undefined) body.max_tokens = -1;  // completions would end after 16 tokens
  if (at("method").value) body.method = at("method").value;
  if (isColoured()) body.origins = true;
  body.return_progress = true;
  if (mode === "text") return ["v1/completions", {...body, prompt: text}];
  return ["v1/chat/completions", {...body, messages: conversations.messages(open)}];
}

function showError(text) {
  const found = element("p", "turn error", text);
  found.setAttribute("role", "alert");
  at("log").append(found);
  toEnd();
}

// dropped: turns that this question replaces; they come back if it is refused.
async function ask(text, mode, dropped = []) {
  const asked = {role: "user", text, mode};
  const turn = {role: "assistant", text: "", mode, model: at("model").value};
  if (isColoured()) turn.pieces = [];
  const conversation = open;
  conversation.turns.push(asked);
  const [path, body] = bodyOf(text, mode);
  controller = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  draw();
  const problem = await follow(conversation, turn, path, body);
  controller = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  // A message that was refused is not part of the conversation: else it would be sent again.
  if (turn.text || turn.thought) conversation.turns.push(turn);
  else conversation.turns.splice(-1, 1, ...dropped);
  if (conversation === open && conversation.turns.length) keep();
  draw();
  if (!problem) return;
  if (!at("prompt").value && !dropped.length && !turn.text) at("prompt").value = text;
  showError(problem);
}

// Reads an answer to its end and shows it meanwhile; returns what went wrong.
async function follow(conversation, turn, path, body) {
  const wait = new Waiting();
  const shown = element("div", "text"), thought = element("div", "thought");
  const article = element("article", "turn model", element("h2", "", turn.model || "Model"));
  let n = 0, firstMs = 0, drawnMs = 0, end = "";
  try {
    for await (const event of events(path, body, at("key").value, controller.signal)) {
      if (event.prompt_progress) wait.note(event.prompt_progress);
      const choice = event.choices[0];
      if (!choice) continue;
      const piece = (turn.mode === "chat" ? choice.delta.content : choice.text) || "";
      const reasoning = choice.delta?.reasoning_content || "";
      if (reasoning) {
        turn.thought = (turn.thought || "") + reasoning;
        thought.textContent = turn.thought;
        article.append(thought);
      }
      turn.text += piece;
      if (piece) turn.pieces?.push([piece, choice.origin || ""]);
      const nowMs = performance.now();
      if (piece || reasoning) {
        firstMs = firstMs || nowMs;
        n += 1;
        if (wait.end()) at("log").append(article);
      }
      if (nowMs - drawnMs > REDRAW_MS && conversation === open) {
        drawnMs = nowMs;
        const isFollowed = isAtEnd();
        if (turn.text) { article.append(shown); fillText(shown, turn); }
        if (n > 1) at("state").textContent = n + " pieces, " + (1000 * (n - 1) / (nowMs - firstMs)).toFixed(1) + " a second";
        if (isFollowed) toEnd();
      }
      end = choice.finish_reason || end;
      if (event.timings) at("state").textContent = summary(event.timings);
    }
    if (end === "length") at("state").textContent += ", " + cut();
    say("Answer: " + turn.text);
  } catch (error) {
    if (error.name !== "AbortError") return error.message;
    at("state").textContent += ", stopped";
    say("Stopped.");
  } finally {
    wait.end();
  }
  return "";
}

// What shows how far the model has read, until the answer begins. The server reports it pass by pass.
class Waiting {
  constructor() {
    this.startMs = performance.now();
    this.reports = [];  // [when, tokens read], of the latest passes
    this.words = element("span", "");
    this.bar = element("progress", "unseen");
    this.bar.setAttribute("aria-label", "How much of the prompt is read");
    this.row = element("p", "turn waiting", this.words, this.bar);
    at("log").append(this.row);
    toEnd();
    at("state").textContent = "";
    say("Reading the prompt.");
    this.show();
    this.clock = setInterval(() => this.show(), 1000);
  }

  note({total, cache, processed, time_ms: ms}) {
    if (!this.reports.length) this.reports.push([0, cache]);
    this.reports.push([ms, processed]);
    if (this.reports.length > PASSES) this.reports.shift();
    this.total = total;
    this.show();
  }

  // Texts of a second or less show no numbers, which would only flicker.
  show() {
    const s = (performance.now() - this.startMs) / 1000;
    const [firstMs, nFirst] = this.reports[0] || [0, 0], [lastMs, n] = this.reports.at(-1) || [0, 0];
    let words = "Reading the prompt";
    if (s >= 1 && this.total) {
      this.bar.max = this.total;
      this.bar.value = n;
      this.bar.classList.remove("unseen");
      words += ", " + Math.floor(100 * n / this.total) + " %";
      if (n > nFirst && n < this.total) words += ", about " + leftOf((this.total - n) * (lastMs - firstMs) / (n - nFirst));
    } else if (s >= 1) words += ", " + Math.round(s) + " s";
    this.words.textContent = words;
  }

  // Returns whether it was still there.
  end() {
    const isShown = this.clock !== null;
    clearInterval(this.clock);
    this.clock = null;
    this.row.remove();
    return isShown;
  }
}

function leftOf(ms) {
  const s = Math.max(1, Math.round(ms / 1000));
  return (s < 100 ? s + " s" : Math.round(s / 60) + " min") + " left";
}

function cut() {
  const most = at("max_tokens").value;
  return most ? "cut: the most is " + most + " tokens; empty: to the end" : "cut: no more tokens fit";
}

function summary(t) {
  const drafts = t.draft_n ? ", " + t.draft_n_accepted + " of " + t.draft_n + " drafted tokens kept" : "";
  return t.predicted_n + " tokens, " + t.predicted_per_second.toFixed(1) + " tokens/s, first after "
    + Math.round(t.prompt_ms) + " ms, " + t.method + drafts;
}

// ---- what the controls do

at("form").addEventListener("submit", async event => {
  event.preventDefault();
  const text = at("prompt").value;
  if (controller || !text.trim()) return;
  at("prompt").value = "";
  await ask(text, at("mode").value);
  at("prompt").focus();
});
at("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  controller?.abort();
  showSide(false);
});
at("stop").addEventListener("click", () => controller?.abort());
at("new").addEventListener("click", () => show(conversations.create(open.system)));
at("forget").addEventListener("click", () => {
  if (!confirm("Delete all conversations of this browser?")) return;
  conversations.all().forEach(one => conversations.remove(one.id));
  show(conversations.create(""));
});
at("menu").addEventListener("click", () => showSide(!at("side").classList.contains("shown")));
at("system").addEventListener("change", () => { open.system = at("system").value; if (open.turns.length) keep(); });
at("colour").addEventListener("change", () => { if (!controller) draw(); });
addEventListener("storage", listConversations);

const list = () => modelNames(at("key").value)
  .then(names => at("model").replaceChildren(...names.map(name => new Option(name))))
  .catch(error => showError(error.message));
at("key").addEventListener("change", list);
draw();
list();
