// Conversations, kept in this browser's own storage and nowhere else: an entry for each of them, so that two tabs
// do not overwrite each other's.
const PREFIX = "edgedec.conversation.";

export const create = system =>
  ({id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), system, turns: [], changed: Date.now()});

export function all() {
  const found = [];
  for (const key of Object.keys(localStorage).filter(key => key.startsWith(PREFIX)))
    try {
      const one = JSON.parse(localStorage.getItem(key));
      if (PREFIX + one.id === key && Array.isArray(one.turns)) found.push(one);
    } catch { /* not written by this page */ }
  return found.sort((a, b) => b.changed - a.changed);
}

// Throws where the browser keeps nothing more: its storage is full or switched off.
export function save(conversation) {
  conversation.changed = Date.now();
  localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
}

export const remove = id => localStorage.removeItem(PREFIX + id);

export const title = conversation =>
  (conversation.turns.find(turn => turn.role === "user")?.text || "New conversation").slice(0, 80);

// The turns as messages of a request; completions are no part of a chat.
export function messages(conversation) {
  const turns = conversation.turns.filter(turn => turn.mode === "chat");
  const said = turns.map(turn => ({role: turn.role, content: turn.text}));
  return conversation.system.trim() ? [{role: "system", content: conversation.system}, ...said] : said;
}
