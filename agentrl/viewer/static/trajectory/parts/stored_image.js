/** Stored image: an image of the run, by the hash of its bytes; no other image is ever loaded. */
import { html } from "../../lib/html.js";
import { useState } from "../../vendor/hooks.js";
import { bytes } from "../../lib/format.js";
import { ofRun } from "../../lib/api.js";

const HASH = /^[0-9a-f]{64}$/;

/**
 * @param {unknown} value of a message's part or of JSON
 * @returns {{sha256: string, width?: number, height?: number, num_bytes?: number} | null}
 */
export function imageOf(value) {
  if (value === null || typeof value !== "object") return null;
  const image = value.$image ?? value;
  const known = image && typeof image === "object" && typeof image.sha256 === "string";
  const picture = known && String(image.media_type ?? "").startsWith("image/");
  return picture && HASH.test(image.sha256) ? image : null;
}

/** @param {{image: object, run: string}} props */
export function StoredImage({ image, run }) {
  const [lost, setLost] = useState(false);
  const size = image.width && image.height ? `${image.width} × ${image.height}` : "";
  const about = [size, image.num_bytes ? bytes(image.num_bytes) : "", image.sha256.slice(0, 12)]
    .filter(Boolean)
    .join(", ");
  if (lost || !run) return html`<span class="muted">image ${about}: its bytes are not in the run</span>`;
  return html`<figure class="image">
    <img
      src=${ofRun(run, `blob/${image.sha256}`)}
      alt=${`Image of the run, ${about}`}
      loading="lazy"
      onError=${() => setLost(true)}
    />
    <figcaption>${about}</figcaption>
  </figure>`;
}
