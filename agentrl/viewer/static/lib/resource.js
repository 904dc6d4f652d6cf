/** Resource: a hook for an answer that comes later, with its error and a way to ask again. */
import { useEffect, useState } from "../vendor/hooks.js";

/**
 * @param {() => Promise<any>} load
 * @param {unknown[]} inputs what the answer depends on; another value loads anew
 * @returns {{value: any, error: Error | null, loading: boolean, reload: () => void}} `value` is the
 *   last answer for other inputs while `loading`
 */
export function useResource(load, inputs) {
  const [state, setState] = useState({ key: null, value: null, error: null });
  const [count, setCount] = useState(0);
  const key = JSON.stringify([...inputs, count]);
  useEffect(() => {
    let wanted = true;
    load().then(
      (value) => wanted && setState({ key, value, error: null }),
      (error) => wanted && setState({ key, value: null, error }),
    );
    return () => {
      wanted = false;
    };
  }, [key]);
  const loading = state.key !== key;
  const reload = () => setCount(count + 1);
  return { value: state.value, error: loading ? null : state.error, loading, reload };
}
