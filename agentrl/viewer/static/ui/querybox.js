/** Query box: a query as text; what is wrong with it is said below it. */
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";

const PAUSE_MS = 350; // after the last key, before the query is asked

/** Examples for whoever has no query yet. */
const EXAMPLES = [
  ["reward<0.5 tool_errors>=1", "low reward, a call failed"],
  ['text:"No such file"', "words in any turn"],
  ["status:truncated", "cut off"],
  ["step:10..20 -tool:python", "some steps, without a tool"],
];

/**
 * @param {object} props
 * @param {string} props.query
 * @param {(query: string) => void} props.onQuery
 * @param {string} props.error the server's sentence, "" where the query is one
 */
export function QueryBox({ query, onQuery, error }) {
  const [text, setText] = useState(query);
  const known = useRef(query); // the query that the text led to, or that it was last set from
  const send = () => {
    known.current = text.trim();
    if (known.current !== query) onQuery(known.current);
  };
  useEffect(() => {
    if (query === known.current) return; // its own text came back: what was typed since stays, blanks too
    known.current = query;
    setText(query);
  }, [query]);
  useEffect(() => {
    if (text.trim() === query) return undefined;
    const timer = setTimeout(send, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  return html`
    <form class="querybox" role="search" onSubmit=${submit}>
      <input class="field mono" type="search" data-search spellcheck="false" autocomplete="off"
        placeholder='env:code reward<0.5 text:"No such file"' aria-label="Query" aria-invalid=${Boolean(error)}
        aria-describedby="query-error query-examples" value=${text} onInput=${(event) => setText(event.target.value)} />
      <p id="query-error" class="bad" role="alert">${error}</p>
      <p id="query-examples" class=${query || text ? "sr-only" : "muted small examples"}>
        ${EXAMPLES.map(
          ([example, help]) => html`<button type="button" key=${example} class="plain" tabindex=${query || text ? -1 : 0} title=${help} onClick=${() => onQuery(example)}>
            <code>${example}</code>
          </button>`,
        )}
      </p>
    </form>
  `;
}
