// The next edit, shown in place: what goes is struck, what comes stands beside it.
const { commands, languages, window, workspace, CancellationTokenSource, Range, Selection, TextEditorRevealType, ThemeColor } = require("vscode");
const { isLines, panel } = require("./panel");

const METHOD = "textDocument/copilotInlineEdit";
const INVOKED = 1, AUTOMATIC = 2;
const REST_MS = 150; // how long the hand rests before an edit is asked for

const struck = { textDecoration: "line-through", backgroundColor: new ThemeColor("diffEditor.removedTextBackground") };
const removed = window.createTextEditorDecorationType(struck);
const added = window.createTextEditorDecorationType({});

let session; // { client(), isWanted(document) }
let shown; // { editor, version, edit, changes }
let asking, resting;
let completing = Promise.resolve(false); // whether the latest completion has something on offer

/** Has edits shown and taken from now on; returns what is to be disposed of. */
exports.follow = (client, isWanted) => {
  session = { client, isWanted };
  const command = (name, action) => commands.registerCommand(`edgedec.edit.${name}`, action);
  return [
    removed,
    added,
    command("jumpOrTake", () => (isHere() ? take() : jump())),
    command("jump", jump),
    command("take", take),
    command("dismiss", () => leave("edgedec.dismissEdit")),
    command("next", next),
    workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
      if (contentChanges.length && document === window.activeTextEditor?.document) askSoon();
    }),
    window.onDidChangeTextEditorSelection(({ textEditor }) => {
      if (!current() && textEditor === window.activeTextEditor) askSoon();
      else if (shown?.editor === textEditor) paint();
    }),
    window.onDidChangeActiveTextEditor(hide),
  ];
};

/** Takes note of a completion that is asked for: where it offers something, no edit is shown. */
exports.completes = (items) => {
  completing = Promise.resolve(items).then((list) => (list?.items ?? list ?? []).length > 0, () => false);
  completing.then((isOffer) => isOffer && hide());
};

/** Returns what is shown, if its document is still as it was. */
function current() {
  const isNow = shown && shown.editor === window.activeTextEditor && shown.version === shown.editor.document.version;
  return isNow ? shown : undefined;
}

function askSoon() {
  hide();
  resting = setTimeout(async () => !(await completing) && ask(false), REST_MS);
}

/** Asks for the next edit; isNext: for another than the one that is shown, and jumps there. */
async function ask(isNext) {
  const editor = window.activeTextEditor, client = session.client();
  if (!editor || !client?.isRunning() || !session.isWanted(editor.document)) return;
  asking?.cancel();
  const token = (asking = new CancellationTokenSource()).token;
  const { document } = editor, { version } = document, to = client.code2ProtocolConverter;
  const answer = await client.sendRequest(METHOD, {
    textDocument: { uri: to.asUri(document.uri), version },
    position: to.asPosition(editor.selection.active),
    context: {
      triggerKind: isNext ? INVOKED : AUTOMATIC,
      diagnostics: languages.getDiagnostics(document.uri).map((one) => ({ range: to.asRange(one.range), message: one.message })),
    },
  }, token).catch(() => undefined); // cancelled, or the server ended, which the status item shows
  if (token.isCancellationRequested || !answer || editor !== window.activeTextEditor || version !== document.version) return;
  const edit = answer.edits[0];
  if (!edit) return isNext && window.setStatusBarMessage("edgedec: there is no other edit", 4000);
  const changes = edit.changes.map(({ range, newText }) => ({ range: client.protocol2CodeConverter.asRange(range), text: newText }));
  shown = { editor, version, edit, changes };
  commands.executeCommand("setContext", "edgedec.hasEdit", true);
  if (isNext) jump();
  else paint();
}

/** Paints the changes, and where they are if that cannot be seen. */
function paint() {
  const { editor, changes } = shown;
  const first = changes[0].range.start.line;
  const marks = changes.filter(({ text }) => text).map((change) => markOf(change, editor.document));
  if (!editor.visibleRanges.some((range) => range.start.line <= first && first <= range.end.line)) {
    const contentText = `  next edit: line ${first + 1}`, color = new ThemeColor("editorGhostText.foreground");
    marks.push({ range: endOf(editor.document, editor.selection.active.line), renderOptions: { after: { contentText, color } } });
  }
  editor.setDecorations(removed, changes.map(({ range }) => range).filter((range) => !range.isEmpty));
  editor.setDecorations(added, marks);
}

/** Returns the decoration of a text that comes: behind what goes, or as a panel if it has lines. */
function markOf({ range, text }, document) {
  if (!isLines(text)) {
    const after = { contentText: text.replace(/ /g, "\u00a0"), backgroundColor: new ThemeColor("diffEditor.insertedTextBackground") };
    return { range: new Range(range.end, range.end), renderOptions: { after } };
  }
  const isBehind = range.isEmpty && range.start.character === 0; // lines before this one
  const line = Math.max(range.start.line - isBehind, 0);
  return { range: endOf(document, line), renderOptions: { after: panel(text, window.activeColorTheme.kind, workspace.getConfiguration("editor")) } };
}

function endOf(document, line) {
  const { end } = document.lineAt(Math.min(line, document.lineCount - 1)).range;
  return new Range(end, end);
}

/** Says whether the cursor is in the lines of the edit. */
function isHere() {
  const place = current();
  if (!place) return false;
  const { line } = place.editor.selection.active, { start, end } = place.edit.range;
  return start.line <= line && line <= end.line;
}

function jump() {
  const place = current();
  if (!place) return;
  const { start } = place.changes[0].range;
  place.editor.selection = new Selection(start, start);
  place.editor.revealRange(new Range(start, start), TextEditorRevealType.InCenterIfOutsideViewport);
  paint();
}

/** Makes the edit, as one step of undo. */
async function take() {
  const place = current();
  if (!place) return;
  const write = (builder) => place.changes.forEach(({ range, text }) => builder.replace(range, text));
  const isMade = await place.editor.edit(write, { undoStopBefore: true, undoStopAfter: true });
  if (isMade) tell("edgedec.acceptEdit", place.edit);
}

/** Takes the edit away and says why. */
function leave(command) {
  const place = current();
  if (place) tell(command, place.edit);
  hide();
}

function next() {
  const place = current();
  if (place) tell("edgedec.skipEdit", place.edit);
  ask(true);
}

function tell(command, edit) {
  session.client()?.sendRequest("workspace/executeCommand", { command, arguments: edit.command.arguments }).catch(() => {});
}

function hide() {
  clearTimeout(resting);
  asking?.cancel();
  if (!shown) return;
  shown.editor.setDecorations(removed, []);
  shown.editor.setDecorations(added, []);
  shown = undefined;
  commands.executeCommand("setContext", "edgedec.hasEdit", false);
}
