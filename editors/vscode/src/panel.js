// Several lines beside the text. Decorations have one line only, so these are a picture.
const LIGHT = 1, CONTRAST_LIGHT = 4; // kinds of colour themes

const WIDTH = 0.602; // of a letter, by its height
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** Says whether a text has a line end. */
const isLines = (text) => /[\r\n]/.test(text);

/** Returns the options of a decoration that shows the lines of a text. */
function panel(text, theme, editor) {
  const size = editor.get("fontSize") || 14;
  const height = Math.round(editor.get("lineHeight") || 1.35 * size);
  const tab = " ".repeat(Number(editor.get("tabSize")) || 4);
  const lines = text.replace(/^\r?\n|\r?\n$/g, "").split(/\r\n|\r|\n/).map((line) => line.replace(/\t/g, tab));
  const isLight = theme === LIGHT || theme === CONTRAST_LIGHT;
  const [ink, paper, edge] = isLight ? ["#1f2328", "#e6ffec", "#9bd3a8"] : ["#d4d4d4", "#22332a", "#3f6b4d"];
  const width = Math.ceil(Math.max(...lines.map((line) => line.length)) * size * WIDTH) + 16;
  const rows = lines.map((line, i) => {
    const shown = line.replace(/[&<>]/g, (sign) => ESCAPES[sign]);
    return `<text x="8" y="${Math.round((i + 0.72) * height)}" xml:space="preserve">${shown}</text>`;
  });
  const all = lines.length * height + 2;
  const family = String(editor.get("fontFamily") || "monospace").replace(/["<&]/g, "");
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${all}" font-family="${family}" font-size="${size}" fill="${ink}">` +
    `<rect x="0.5" y="0.5" width="${width - 1}" height="${all - 1}" rx="3" fill="${paper}" stroke="${edge}"/>${rows.join("")}</svg>`;
  const { Uri } = require("vscode");
  return {
    contentIconPath: Uri.parse(`data:image/svg+xml;base64,${Buffer.from(svg).toString("base64")}`),
    margin: "0 0 0 24px",
    textDecoration: "none; position: absolute; z-index: 10;", // over the lines below
  };
}

module.exports = { isLines, panel };
