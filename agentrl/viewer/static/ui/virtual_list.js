/**
 * Virtual list: any number of entries of any height, of which those near the view exist. A short list is there
 * whole, so that the browser's search finds all of it.
 */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { BlockHeights } from "../trajectory/tokens/partition.js";

const WHOLE = 100; // entries of a list that is not cut
const SPARE = 800; // pixels drawn beyond each edge

/**
 * @param {object} props its owner gives it a key: another list is another component
 * @param {{current: HTMLElement}} props.box what scrolls
 * @param {string} [props.tag] of the list
 * @param {number} props.count
 * @param {(index: number) => number} props.estimate pixels of an entry that was not drawn yet
 * @param {(index: number) => unknown} props.entry an entry's element
 * @param {number} [props.goal] the entry to scroll to whenever it changes, -1 for none
 * @param {ScrollLogicalPosition} [props.block] where in the view it comes
 */
export function VirtualList({ box, tag = "div", count, estimate, entry, goal = -1, block = "start" }) {
  const list = useRef(null);
  const heights = useMemo(() => new BlockHeights(Array.from({ length: count }, (_, index) => estimate(index))), [count]);
  const [view, setView] = useState({ top: 0, height: 800 });
  const isWhole = count <= WHOLE;
  const above = () => box.current.getBoundingClientRect().top - list.current.getBoundingClientRect().top;
  const isAtEnd = useRef(false); // then it stays there, however high the last entries turn out
  const look = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    isAtEnd.current = scrollTop > 0 && scrollTop + clientHeight > scrollHeight - 2;
    setView({ top: above(), height: clientHeight });
  };
  const first = isWhole ? 0 : heights.at(Math.max(0, view.top - SPARE));
  const last = isWhole ? count : Math.min(count, heights.at(view.top + view.height + SPARE) + 1);
  const wanted = useRef(-1); // where the list is on its way to
  useWatch(box, isWhole ? null : look);
  useLayoutEffect(() => {
    wanted.current = goal < count ? goal : -1;
    if (wanted.current >= 0 && !isWhole) leap();
  }, [goal, count]);
  useLayoutEffect(() => {
    if (!isWhole && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
    if (!isWhole && measured()) look(); // what came out shorter leaves room for more
    const element = wanted.current < first ? null : list.current.children[wanted.current - first];
    element?.scrollIntoView({ block });
    if (element) wanted.current = -1;
  });
  const leap = () => {
    const top = heights.top(goal) - above();
    const isSeen = goal >= first && goal < last;
    if (!isSeen) box.current.scrollTop += top;
    look();
  };
  /** Takes the heights of what is drawn; where one above the view changed, what is read stays. */
  const measured = () => {
    if (box.current.clientHeight === 0) return false; // hidden: no height is true
    const top = above();
    let [moved, isNew] = [0, false];
    [...list.current.children].forEach((element, place) => {
      const isAbove = heights.top(first + place) + heights.heights[first + place] <= top;
      const grown = heights.measure(first + place, element.getBoundingClientRect().height);
      if (isAbove) moved += grown;
      isNew ||= grown !== 0;
    });
    if (moved !== 0) box.current.scrollTop += moved;
    return isNew;
  };
  const style = isWhole
    ? undefined
    : { paddingTop: `${heights.top(first)}px`, paddingBottom: `${heights.total - heights.top(last)}px` };
  const entries = Array.from({ length: last - first }, (_, place) => entry(first + place));
  return html`<${tag} class=${isWhole ? "virtual" : "virtual cut"} ref=${list} style=${style}>${entries}</${tag}>`;
}

/** Calls `look` at once, and in the frame after each scroll or change of size; never where it is null. */
export function useWatch(box, look) {
  const now = useRef(look);
  now.current = look;
  const isOn = look !== null;
  useEffect(() => {
    if (!isOn) return undefined;
    const element = box.current;
    let frame = 0;
    const later = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        if (box.current) now.current(); // a page that is left takes its box away before the frame comes
      });
    };
    now.current();
    element.addEventListener("scroll", later, { passive: true });
    const resized = new ResizeObserver(later);
    resized.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", later);
      resized.disconnect();
    };
  }, [isOn]);
}
