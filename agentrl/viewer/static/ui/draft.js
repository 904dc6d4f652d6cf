/** Draft: a field whose text is the writer's until it is done; what the page draws anew leaves it. */
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";

/**
 * @param {{value: string, onDone: (text: string) => void}} props `value` as it stands; further ones go to the input
 */
export function Draft({ value, onDone, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input ...${rest} value=${text} onInput=${(event) => setText(event.target.value)}
    onChange=${(event) => onDone(event.target.value)} />`;
}
