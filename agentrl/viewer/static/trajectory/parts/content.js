/** Content: a message's content, which is text or parts of text and images. */
import { html } from "../../lib/html.js";
import { showUnseen } from "../../lib/unseen.js";
import { JsonTree } from "./json_tree.js";
import { Markdown } from "./markdown.js";
import { imageOf, StoredImage } from "./stored_image.js";

/** @param {{content: unknown, run: string}} props */
export function Content({ content, run }) {
  if (content === null || content === undefined || content === "") return null;
  if (typeof content === "string") return html`<${Markdown} text=${content} />`;
  if (Array.isArray(content))
    return html`${content.map((part) => html`<${Part} part=${part} run=${run} />`)}`;
  return html`<${JsonTree} value=${content} run=${run} />`;
}

function Part({ part, run }) {
  if (typeof part === "string") return html`<${Markdown} text=${part} />`;
  if (part?.type === "text") return html`<${Markdown} text=${String(part.text ?? "")} />`;
  const image = imageOf(part?.image) ?? imageOf(part);
  if (image) return html`<${StoredImage} image=${image} run=${run} />`;
  const address = part?.image_url?.url ?? part?.image_url ?? part?.url;
  if (typeof address === "string") {
    return html`<p class="md-image">image not loaded: <code>${showUnseen(address.slice(0, 300))}</code></p>`;
  }
  return html`<${JsonTree} value=${part} run=${run} />`;
}
