/** Templates: `html` makes Preact nodes from tagged templates. Text stays text, never markup. */
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
