/** Query: terms of a query as text, to put in and take out by a click. The server alone reads it. */

const TERM = /"(?:[^"\\]|\\.)*"|(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g;
const PLAIN = /^(?!(?:none|any)$)(?!.*\.\.)[\w./@+-]+$/; // none, any and a range mean something else

/** The terms of a query: `a:b text:"c d" -e` has three. */
export function terms(query) {
  return query.match(TERM) ?? [];
}

/**
 * A term that asks for one value of a column, quoted where it must be.
 * @param {string} key
 * @param {unknown} value
 */
export function term(key, value) {
  const text = String(value);
  return `${key}:${PLAIN.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`}`;
}

/** Whether the query holds the term. */
export function has(query, wanted) {
  return terms(query).includes(wanted);
}

/** The query with the terms put in where one was missing, taken out where all were there. */
export function toggled(query, ...wanted) {
  const all = terms(query);
  if (wanted.every((one) => all.includes(one))) return all.filter((one) => !wanted.includes(one)).join(" ");
  return [...all, ...wanted.filter((one) => !all.includes(one))].join(" ");
}
