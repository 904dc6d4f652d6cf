/** Token pane: a component around the blocks; what changes on the page changes only its colours. */
import { html } from "../../lib/html.js";
import { useEffect, useRef } from "../../vendor/hooks.js";
import { TokenBlocks } from "./blocks.js";
import { paintLevels } from "./palette.js";

/**
 * @param {object} props
 * @param {import("../token_model.js").TokenModel} props.model
 * @param {import("../token_model.js").TokenColumn} props.column colours the tokens
 * @param {number | null} props.sequence the one to show, null for all
 * @param {number | null} props.threshold severity from which a token is framed
 * @param {[number, number] | null} props.selection
 * @param {{token: number, turn: number, count: number}} props.target a place to scroll to; `count`
 *   grows with each wish
 * @param {string} props.label
 * @param {object} props.events `hover(token)`, `pick(token, extend)`, `move(step, extend)`, `head(turn)`
 */
export function TokenPane({ model, column, sequence, threshold, selection, target, label, events }) {
  const element = useRef(null);
  const blocks = useRef(null);
  const newest = useRef(events);
  newest.current = events;

  useEffect(() => {
    blocks.current = new TokenBlocks(element.current, {
      hover: (token) => newest.current.hover(token),
      pick: (token, extend) => newest.current.pick(token, extend),
      head: (turn) => newest.current.head(turn),
    });
    return () => blocks.current.close();
  }, []);

  useEffect(() => {
    blocks.current.show(model, sequence, paintLevels(column));
  }, [model, sequence]);

  useEffect(() => {
    const severity = threshold === null ? null : column.severity;
    const marked = severity === null ? () => false : (token) => severity[token] >= threshold;
    blocks.current.dressAll(paintLevels(column), marked, selection ?? [-1, -1]);
  }, [model, column, threshold, selection?.[0], selection?.[1]]);

  useEffect(() => {
    if (target.token >= 0) blocks.current.reveal(target.token);
    else if (target.turn >= 0) blocks.current.revealTurn(target.turn);
  }, [sequence, target.count]); // not with the model: what is learned later must not move the reader

  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    newest.current.move(step, event.shiftKey);
  };
  return html`<div
    class="tok-pane"
    ref=${element}
    role="group"
    aria-label=${label}
    tabindex="0"
    onKeyDown=${onKeyDown}
  ></div>`;
}
