// Where the program edgedec is: in the environment of the workspace, or on PATH.
const fs = require("node:fs");
const path = require("node:path");

const NAME = process.platform === "win32" ? "edgedec.exe" : "edgedec";
const BIN = process.platform === "win32" ? "Scripts" : "bin";

/** Returns folders that may hold the program, the likeliest first. */
function places(folders, environment, interpreter) {
  const inside = (folder) => [".venv", "venv"].map((name) => path.join(folder, name, BIN));
  return [
    ...(interpreter ? [path.dirname(interpreter)] : []),
    ...folders.flatMap(inside),
    ...[environment.VIRTUAL_ENV, environment.CONDA_PREFIX].filter(Boolean).map((one) => path.join(one, BIN)),
    ...(environment.PATH ?? "").split(path.delimiter).filter(Boolean),
  ];
}

/** Returns the program in the first of some folders that has it, undefined if none has. */
function firstProgram(candidates) {
  return candidates.map((folder) => path.join(folder, NAME)).find((file) => {
    try {
      fs.accessSync(file, fs.constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

/** Returns the path of edgedec: the one that settings name, or the one of the environment. */
async function findProgram(configured) {
  if (configured) return configured;
  const { extensions, workspace } = require("vscode");
  // A folder that nobody trusts has no say in what runs.
  const folders = workspace.isTrusted ? (workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath) : [];
  let interpreter;
  try {
    const python = await extensions.getExtension("ms-python.python")?.activate();
    interpreter = workspace.isTrusted && python?.environments?.getActiveEnvironmentPath()?.path;
  } catch {
    // without the Python extension's word the other places are looked at
  }
  return firstProgram(places(folders, process.env, interpreter));
}

module.exports = { findProgram, firstProgram, places };
