/** Unseen: characters that cannot be seen, as visible signs. What is shown is what is there. Pure functions. */

const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\p{Surrogate}\u{e0000}-\u{e0fff}]|\r(?!\n)/gu;

/** Scripts whose letters a joiner joins or parts: in other words it only hides. */
const JOINING =
  "Arab Syrc Nkoo Mong Rohg Adlm Deva Beng Guru Gujr Orya Taml Telu Knda Mlym Sinh Mymr Khmr Tibt Java Bali"
    .split(" ")
    .map((script) => `\\p{scx=${script}}`)
    .join("");
const LETTER = "[\\p{L}\\p{M}]";
const PICTURE = "\\p{Extended_Pictographic}";

/** A sign that belongs to its neighbours: a joiner between letters that join or pictures, a picture's own form. */
const KEPT = new RegExp(
  [
    `(?<=${LETTER})(?<=[${JOINING}])[\u200c\u200d](?=${LETTER})(?=[${JOINING}])`,
    `(?<=${PICTURE}\ufe0f?|\\p{Emoji_Modifier})\u200d(?=${PICTURE})`,
    `(?<=${PICTURE})[\ufe0e\ufe0f]`,
    "(?<=[0-9#*])\ufe0f(?=\u20e3)",
  ].join("|"),
  "uy",
);

/**
 * A text with its controls, marks of direction and of no width as `⟨U+202E⟩`. Newlines and tabs stay, and so does
 * what makes the letters and pictures beside it join.
 * @param {unknown} text
 * @returns {string}
 */
export function showUnseen(text) {
  return String(text ?? "").replace(UNSEEN, (sign, at, whole) => {
    KEPT.lastIndex = at;
    return KEPT.test(whole) ? sign : marked(sign);
  });
}

/** The same of a part of a text, such as a token: joiners too, since what they join may lie in another. */
export function showEvery(text) {
  return text.replace(UNSEEN, marked);
}

function marked(sign) {
  return `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
