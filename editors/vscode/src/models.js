// Models to choose from, as `edgedec models list` knows them.
const { execFile } = require("node:child_process");
const path = require("node:path");
const { promisify } = require("node:util");

const run = promisify(execFile);
const MOST_BYTES = 1 << 24;

/** Returns the entries of the list: what is ready first, then what this machine can get. */
function entriesOf(table) {
  const ready = table.bundles.map(({ path: file, model, n_bytes }) => ({
    label: path.basename(file).replace(/\.edgedec$/, ""),
    description: `ready, ${megabytes(n_bytes)}`,
    detail: model,
    bundle: path.resolve(file),
  }));
  const made = new Set(ready.map(({ label }) => label));
  const others = table.models.filter(({ name, fits }) => fits !== false && !made.has(slug(name)));
  const fitting = others.map(({ name, state, n_bytes, for: purpose }) => ({
    label: name,
    description: `${state === "to fetch" ? "download" : "prepare"}, ${megabytes(n_bytes)}`,
    detail: purpose,
    name,
  }));
  return [...ready, ...fitting, { label: "Open a GGUF file or a bundle…", isFile: true }];
}

const slug = (name) => name.toLowerCase().replace(/[^\w.-]/g, "--");
const megabytes = (n) => `${Math.round(n / 1e6)} MB`;

/** Asks for a model; returns a bundle that is ready, undefined if nobody chose. */
async function pickModel(program) {
  const { window } = require("vscode");
  const table = await run(program, ["models", "list", "--json"], { maxBuffer: MOST_BYTES });
  const entries = entriesOf(JSON.parse(table.stdout));
  const chosen = await window.showQuickPick(entries, {
    title: "edgedec: choose a model",
    placeHolder: "For programs, choose a Coder model",
    matchOnDetail: true,
  });
  if (!chosen) return undefined;
  if (chosen.bundle) return chosen.bundle;
  const name = chosen.isFile ? await askForFile() : chosen.name;
  return name && prepare(program, name);
}

async function askForFile() {
  const { window } = require("vscode");
  const found = await window.showOpenDialog({ canSelectFiles: true, canSelectFolders: true, openLabel: "Use" });
  return found?.[0].fsPath;
}

/** Downloads a model if it is not here, and makes its bundle; returns its name, undefined if that failed. */
function prepare(program, name) {
  const { window, ProgressLocation } = require("vscode");
  const shown = { location: ProgressLocation.Notification, title: `edgedec: preparing ${name}`, cancellable: true };
  return window.withProgress(shown, async (progress, token) => {
    const stop = new AbortController();
    token.onCancellationRequested(() => stop.abort());
    try {
      await run(program, ["inspect", name, "--json"], { signal: stop.signal, maxBuffer: MOST_BYTES });
      return name;
    } catch (error) {
      if (!stop.signal.aborted) window.showErrorMessage(`edgedec: ${lastLine(error.stderr ?? error.message)}`);
      return undefined;
    }
  });
}

const lastLine = (text) => text.trim().split("\n").pop();

module.exports = { entriesOf, pickModel };
