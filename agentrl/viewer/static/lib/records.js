/** Records: what of two or more runs' records differs. */

/**
 * The leaves in which records differ.
 * @param {object[]} records
 * @returns {{path: string, values: unknown[]}[]}
 */
export function differences(records) {
  const leaves = records.map((record) => new Map(flattened(record, "")));
  const paths = [...new Set(leaves.flatMap((own) => [...own.keys()]))].sort();
  return paths
    .map((path) => ({ path, values: leaves.map((own) => own.get(path)) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

function* flattened(value, path) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, own] of Object.entries(value)) yield* flattened(own, path ? `${path}.${key}` : key);
  } else {
    yield [path, value];
  }
}
