// Monaco, the editor component of VS Code, with ghost text from a language server behind /inline.
import * as monaco from "monaco-editor/esm/vs/editor/editor.main.js";

const post = (path, body) =>
  fetch(path, { method: "POST", body: JSON.stringify(body) }).then((answer) => answer.json());
const at = ({ start, end }) =>
  new monaco.Range(start.line + 1, start.character + 1, end.line + 1, end.character + 1);
const until = async (found) => {
  while (!found()) await new Promise((done) => setTimeout(done, 20));
  return found();
};
const ghost = () =>
  [...document.querySelectorAll(".ghost-text-decoration, .ghost-text")]
    .map((element) => element.textContent.replaceAll("\u00a0", " "))
    .join("");

self.MonacoEnvironment = {
  getWorker: () => new Worker(URL.createObjectURL(new Blob(["onmessage = () => {}"]))),
};
monaco.languages.registerInlineCompletionsProvider("plaintext", {
  provideInlineCompletions: async (model, position) => {
    const items = await post("/inline", {
      text: model.getValue(),
      line: position.lineNumber - 1,
      character: position.column - 1,
    });
    return { items: items.map(({ insertText, range }) => ({ insertText, range: at(range) })) };
  },
  disposeInlineCompletions: () => {},
});

async function run() {
  const editor = monaco.editor.create(document.getElementById("editor"), {
    language: "plaintext",
    inlineSuggest: { enabled: true },
    quickSuggestions: false,
    wordBasedSuggestions: "off",
  });
  editor.focus();
  for (const key of decodeURIComponent(location.hash.slice(1))) {
    editor.trigger("keyboard", "type", { text: key });
  }
  editor.trigger("keyboard", "editor.action.inlineSuggest.trigger");
  const written = editor.getValue();
  const shown = await until(ghost);
  const unchanged = editor.getValue() === written;
  editor.trigger("keyboard", "editor.action.inlineSuggest.commit");
  const taken = await until(() => editor.getValue() !== written && editor.getValue());
  await post("/result", { shown, unchanged, taken });
}

addEventListener("error", (event) => post("/result", { error: event.message }));
run().catch((error) => post("/result", { error: String(error.stack) }));
