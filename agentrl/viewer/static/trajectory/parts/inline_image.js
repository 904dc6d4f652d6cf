/** Inline image: an image that a state brings as base64, drawn on a canvas; it never has an address. */
import { html } from "../../lib/html.js";
import { useEffect, useRef, useState } from "../../vendor/hooks.js";
import { bytesOf } from "../../lib/arrays.js";
import { isPicture } from "./blob.js";

const MOST_PIXELS = 16_000_000;

/** @param {{base64: string}} props */
export function InlineImage({ base64 }) {
  const canvas = useRef(null);
  const [about, setAbout] = useState("");
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    let wanted = true;
    draw(base64, () => wanted && canvas.current).then(
      (size) => wanted && setAbout(size),
      (error) => {
        if (!wanted) return;
        setFailed(true);
        setAbout(`the image cannot be shown: ${error.message}`);
      },
    );
    return () => {
      wanted = false;
    };
  }, [base64]);
  return html`<figure class="image">
    <canvas ref=${canvas} hidden=${failed} role="img" aria-label="Image of the state"></canvas>
    <figcaption>${about}</figcaption>
  </figure>`;
}

async function draw(base64, target) {
  const bytes = bytesOf(base64);
  if (!isPicture(bytes)) throw new TypeError("expected a PNG, JPEG, WebP or GIF");
  const bitmap = await createImageBitmap(new Blob([bytes]));
  const { width, height } = bitmap;
  if (width * height > MOST_PIXELS) throw new RangeError(`${width} × ${height} pixels are too many`);
  const canvas = target();
  if (canvas) {
    canvas.width = width;
    canvas.height = height;
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
  }
  bitmap.close();
  return `${width} × ${height}`;
}
