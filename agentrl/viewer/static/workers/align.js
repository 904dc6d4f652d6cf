/** Worker: aligns the sequences of a message and answers with the alignment, or with why not. */
import { align } from "./alignment.js";

self.onmessage = ({ data: { number, sequences, reference } }) => {
  const started = performance.now();
  try {
    const alignment = align(sequences, reference);
    const ms = performance.now() - started;
    const moved = [alignment.differs.buffer, ...alignment.rows.map((row) => row.buffer)];
    self.postMessage({ number, alignment, ms }, moved);
  } catch (error) {
    self.postMessage({ number, error: String(error) });
  }
};
