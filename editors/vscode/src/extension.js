// Suggestions of `edgedec lsp` in VS Code.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = () => {
  const command = workspace.getConfiguration("edgedec").get("command");
  client = new LanguageClient(
    "edgedec",
    "edgedec",
    { command, args: ["lsp"] },
    {
      documentSelector: [{ scheme: "file" }, { scheme: "untitled" }],
      synchronize: { configurationSection: "edgedec" },
    },
  );
  return client.start();
};

exports.deactivate = () => client?.stop();
