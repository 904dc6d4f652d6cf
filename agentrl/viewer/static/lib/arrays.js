/** Arrays: decodes the server's `{"dtype", "data"}` (little-endian, base64) into typed arrays. */

const KINDS = new Map([
  ["<f4", Float32Array],
  ["<f8", Float64Array],
  ["<i4", Int32Array],
  ["<i2", Int16Array],
  ["|i1", Int8Array],
  ["|u1", Uint8Array],
]);

/**
 * The bytes of base64 text.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * The values of an array as the server sent it.
 * @param {{dtype: string, data: string}} array
 * @returns {Float32Array|Float64Array|Int32Array|Int16Array|Int8Array|Uint8Array}
 */
export function decode(array) {
  const kind = KINDS.get(array?.dtype);
  if (!kind) {
    throw new TypeError(`array has dtype ${array?.dtype}; expected one of ${[...KINDS.keys()]}`);
  }
  const bytes = bytesOf(array.data);
  if (bytes.byteOffset % kind.BYTES_PER_ELEMENT) return new kind(bytes.slice().buffer);
  return new kind(bytes.buffer, bytes.byteOffset, bytes.length / kind.BYTES_PER_ELEMENT);
}
