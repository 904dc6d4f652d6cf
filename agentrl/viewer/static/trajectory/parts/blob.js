/** Blob: bytes of the run by their hash, as text where they are text. */
import { ApiError, ofRun } from "../../lib/api.js";

const HASH = /^[0-9a-f]{64}$/;
const kept = new Map();
const KEPT = 64;

/** First bytes of PNG, JPEG, WebP and GIF, as the server tells them too. */
const PICTURES = [/^89 50 4e 47/, /^ff d8 ff/, /^52 49 46 46 .. .. .. .. 57 45 42 50/, /^47 49 46 38/];

/**
 * @param {string} run
 * @param {{sha256: string, num_bytes?: number, left_out?: string} | null | undefined} blob
 * @returns {Promise<{text: string | null, size: number, note: string, image: boolean}>} `text` is null
 *   for bytes that are no UTF-8, and where the blob was left out, which `note` explains; `image` for
 *   a PNG, JPEG, WebP or GIF
 * @throws {ApiError}
 */
export async function readBlob(run, blob) {
  if (!blob) return { text: "", size: 0, note: "", image: false };
  if (!HASH.test(blob.sha256 ?? "")) {
    const note = blob.left_out || "its bytes were not kept";
    return { text: null, size: blob.num_bytes ?? 0, note, image: false };
  }
  const key = `${run}/${blob.sha256}`;
  if (!kept.has(key)) {
    kept.set(key, fetchBlob(run, blob.sha256));
    kept.get(key).catch(() => kept.delete(key));
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(key);
}

async function fetchBlob(run, sha256) {
  const response = await fetch(ofRun(run, `blob/${sha256}`), { credentials: "same-origin" });
  if (!response.ok) {
    throw new ApiError(
      `blob ${sha256.slice(0, 12)} cannot be read: status ${response.status}`,
      response.status,
    );
  }
  const bytes = new Uint8Array(await response.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\u0000")) return { text, size: bytes.length, note: "", image: false };
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // TypeError: these bytes are no UTF-8
  }
  const head = hexHead(bytes);
  const image = isPicture(bytes);
  return { text: null, size: bytes.length, note: `binary; it begins ${head}`, image };
}

/** Whether bytes begin as a PNG, JPEG, WebP or GIF does, the only kinds that are shown. */
export function isPicture(bytes) {
  const head = hexHead(bytes);
  return PICTURES.some((start) => start.test(head));
}

function hexHead(bytes) {
  return Array.from(bytes.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
