/** Picture: a chart as a PNG file, with its title and the names of its lines. */
import { colour } from "./theme.js";

const HEAD = 26; // pixels of a line of text

/**
 * @param {object} plot of uPlot
 * @param {string} title
 * @param {{name: string, hue: number}[]} lines
 */
export function savePicture(plot, title, lines) {
  const drawn = plot.ctx.canvas;
  const ratio = drawn.width / plot.width;
  const head = HEAD * (1 + lines.length);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [drawn.width, drawn.height + head * ratio];
  const context = canvas.getContext("2d");
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(drawn, 0, head * ratio);
  context.scale(ratio, ratio);
  context.font = "600 13px system-ui, sans-serif";
  [{ name: title }, ...lines].forEach(({ name, hue }, index) => {
    context.fillStyle = colour(hue ? `--series-${((hue - 1) % 8) + 1}` : "--fg");
    context.fillText(name, 10, HEAD * index + 18, plot.width - 20);
  });
  canvas.toBlob((blob) => {
    const file = document.createElement("a");
    file.href = URL.createObjectURL(blob);
    file.download = `${title.replace(/[^\w.-]+/g, "_").slice(0, 80)}.png`;
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href), 10_000);
  });
}
