/** Run filter: words and comparisons that choose runs of the list. Pure functions. */

const COMPARISON = /^([^<>=!]+)(<=|>=|!=|=|<|>)(.+)$/;
const TAG = /^tag:(.+)$/i;
const OWN = ["name", "state", "stage", "step", "seed", "trajectories"];

/**
 * The value of a run in a column of the table.
 * @param {object} run of `/api/runs`
 * @param {string} column one of its own, or "setting:PATH", "record:PATH", "metric:NAME"
 */
export function valueOf(run, column) {
  const value = column.includes(":") ? (Object.hasOwn(run.columns ?? {}, column) ? run.columns[column] : null) : run[column];
  return value ?? null;
}

/**
 * @param {string} text `words state=alive optim.lr>1e-3 tag:good`
 * @param {string[]} columns that are shown; one is named by the end of its path
 * @returns {{fits: (run: object) => boolean, error: string}}
 */
export function runFilter(text, columns) {
  const tests = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const tag = TAG.exec(word);
    const compared = tag ? null : COMPARISON.exec(word);
    if (tag) {
      tests.push((run) => (run.tags ?? []).some(({ labels }) => labels.includes(tag[1])));
    } else if (compared) {
      const [, field, sign, wanted] = compared;
      const column = columnOf(field, columns);
      if (!column) return { fits: () => true, error: `no column ${field} is shown: choose it, or one of ${OWN.join(", ")}` };
      tests.push((run) => holds(valueOf(run, column), sign, wanted));
    } else {
      tests.push((run) => `${run.name} ${run.stage ?? ""} ${run.state} ${run.command ?? ""}`.toLowerCase().includes(word.toLowerCase()));
    }
  }
  return { fits: (run) => tests.every((test) => test(run)), error: "" };
}

function columnOf(field, columns) {
  if (OWN.includes(field)) return field;
  const path = (column) => column.slice(column.indexOf(":") + 1);
  return columns.find((column) => column === field || path(column) === field) ?? columns.find((column) => path(column).endsWith(`.${field}`));
}

function holds(value, sign, wanted) {
  if (value === null) return sign === "!=";
  const [a, b] = typeof value === "number" && wanted.trim() !== "" && !Number.isNaN(Number(wanted)) ? [value, Number(wanted)] : [plain(value), wanted];
  return { "=": a === b, "!=": a !== b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
}

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/**
 * The runs by a column, those without a value last.
 * @param {string} sort a column, "-" before it for descending; "" leaves them
 */
export function sortedRuns(runs, sort) {
  if (!sort) return runs;
  const column = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...runs].sort((one, other) => {
    const [a, b] = [valueOf(one, column), valueOf(other, column)];
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * plain(a).localeCompare(plain(b), "en", { numeric: true });
  });
}
