// Suggestions and edits of `edgedec lsp` in VS Code, its status item and its commands.
const { commands, window, workspace, InlineCompletionTriggerKind, StatusBarAlignment } = require("vscode");
const { LanguageClient, State } = require("vscode-languageclient/node");
const edits = require("./edits");
const { findProgram } = require("./program");
const { pickModel } = require("./models");

const SECTION = "edgedec";
const INSTALL = "pip install 'edgedec-runtime[lsp]'";

let client, item, program;
let isLoading = false; // the model
let problem = ""; // why there is no server
let complaint = ""; // what the server said last that it cannot do

const setting = (name) => workspace.getConfiguration(SECTION).get(name);
const change = (name, value) => workspace.getConfiguration(SECTION).update(name, value, true);

exports.activate = async (context) => {
  item = window.createStatusBarItem(StatusBarAlignment.Right, 100);
  item.command = "edgedec.menu";
  item.show();
  const command = (name, action) => commands.registerCommand(`edgedec.${name}`, action);
  context.subscriptions.push(
    item,
    command("toggle", () => change("enabled", !setting("enabled"))),
    command("pickModel", chooseModel),
    command("restart", restart),
    command("menu", showMenu),
    workspace.onDidChangeConfiguration((event) => {
      if (!event.affectsConfiguration(SECTION)) return;
      if (event.affectsConfiguration("edgedec.command") || !client || problem) restart();
      else showStatus();
    }),
    ...edits.follow(() => client, isWanted),
    workspace.onDidGrantWorkspaceTrust(() => client || restart()),
  );
  await restart();
};

exports.deactivate = () => client?.stop();

/** Starts the server once there is a model for it, in place of the one that runs. */
async function restart() {
  await client?.stop().catch(() => {});
  client = undefined;
  program = await findProgram(setting("command"));
  problem = program ? "" : "edgedec is not installed";
  complaint = "";
  isLoading = true; // until the server says that it has loaded the model, or why it cannot
  if (program && setting("bundle")) {
    client = new LanguageClient(SECTION, SECTION, { command: program, args: ["lsp"] }, {
      documentSelector: [{ scheme: "file" }, { scheme: "untitled" }, { scheme: "vscode-remote" }],
      synchronize: { configurationSection: SECTION },
      middleware: { provideInlineCompletionItems: complete, handleWorkDoneProgress: followLoading },
    });
    client.onNotification("window/showMessage", showMessage);
    client.onDidChangeState(showStatus);
    await client.start().catch((error) => (problem = String(error.message ?? error)));
  }
  showStatus();
}

/** Says whether a document may have suggestions. */
const isWanted = (document) => setting("enabled") && !setting("excluded_languages").includes(document.languageId);

/** Asks for suggestions; says so if there is only one where somebody wants another. */
async function complete(document, position, context, token, next) {
  if (!isWanted(document)) return undefined;
  const asked = next(document, position, context, token);
  edits.completes(asked);
  const list = await asked;
  const isOnly = (list?.items ?? list)?.length === 1 && context.triggerKind === InlineCompletionTriggerKind.Invoke;
  if (isOnly) window.setStatusBarMessage("edgedec: this is the only suggestion", 4000);
  return list;
}

/** Shows what the server says. An error stays in the status item until a model is loaded. */
function showMessage({ type, message }) {
  const isError = type === 1;
  if (!isError) return window.showInformationMessage(message);
  complaint = message.replace(/^edgedec: /, "");
  isLoading = false;
  showStatus();
  window.showErrorMessage(message, "Choose a model").then((answer) => answer && chooseModel());
}

/** Says when a model is being loaded, and forgets an error then. */
function followLoading(token, params, next) {
  if (params.kind === "begin") complaint = "";
  isLoading = params.kind !== "end";
  next(token, params);
  showStatus();
}

/** Shows in the status item how things are. */
function showStatus() {
  const bundle = setting("bundle");
  const name = bundle.split(/[\\/]/).pop().replace(/\.edgedec$/, "");
  const isRunning = client?.state === State.Running;
  if (problem) [item.text, item.tooltip] = ["$(warning) edgedec", `${problem}: ${INSTALL}`];
  else if (complaint) [item.text, item.tooltip] = ["$(warning) edgedec", complaint];
  else if (!bundle) [item.text, item.tooltip] = ["$(sparkle) edgedec: choose a model", ""];
  else if (!setting("enabled")) [item.text, item.tooltip] = ["$(circle-slash) edgedec", `off: ${name}`];
  else if (!isRunning) [item.text, item.tooltip] = ["$(loading~spin) edgedec", "starting"];
  else if (isLoading) [item.text, item.tooltip] = ["$(loading~spin) edgedec", `loading ${name}`];
  else [item.text, item.tooltip] = ["$(sparkle) edgedec", `on: ${name}`];
}

/** Offers what can be done. */
async function showMenu() {
  if (problem) {
    const answer = await window.showErrorMessage(`${problem}. Install it: ${INSTALL}`, "Settings", "Try again");
    if (answer === "Settings") commands.executeCommand("workbench.action.openSettings", "edgedec.command");
    if (answer === "Try again") restart();
    return;
  }
  if (!setting("bundle")) return chooseModel();
  const entries = [
    { label: setting("enabled") ? "Turn suggestions off" : "Turn suggestions on", command: "edgedec.toggle" },
    { label: "Choose a model…", command: "edgedec.pickModel", description: setting("bundle") },
    { label: "Settings", command: "workbench.action.openSettings", argument: "edgedec" },
    { label: "Start the server again", command: "edgedec.restart" },
  ];
  const chosen = await window.showQuickPick(entries, { title: "edgedec" });
  if (chosen) commands.executeCommand(chosen.command, chosen.argument);
}

/** Asks for a model, gets it ready if need be, and uses it from now on. */
async function chooseModel() {
  if (!program) return showMenu();
  const bundle = await pickModel(program);
  if (bundle) await change("bundle", bundle);
}
