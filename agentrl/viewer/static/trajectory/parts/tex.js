/**
 * TeX: mathematics as a tree of MathML; a part of TeX's language, and null for a formula with anything else. Pure.
 *
 * A node is `[tag, attributes, ...children]`, a child a node or text. Tags and attributes come from here alone; a
 * formula gives letters and signs.
 */

const LONGEST = 2_000; // characters of a formula
const DEEPEST = 60;

const TOKEN = /\\([a-zA-Z]+|[^])|(\d+(?:,\d{3}(?!\d))*(?:\.\d+)?)|(\s+)|([^])/gu;

const pairs = (text) => text.split(" ").map((pair) => [pair.slice(0, -1), pair.at(-1)]);

const LETTERS = new Map(
  pairs(
    "alphaα betaβ gammaγ deltaδ epsilonϵ varepsilonε zetaζ etaη thetaθ varthetaϑ iotaι kappaκ lambdaλ muμ nuν xiξ piπ varpiϖ rhoρ sigmaσ tauτ upsilonυ phiϕ varphiφ chiχ psiψ omegaω " +
      "GammaΓ DeltaΔ ThetaΘ LambdaΛ XiΞ PiΠ SigmaΣ UpsilonΥ PhiΦ PsiΨ OmegaΩ ellℓ hbarℏ infty∞ emptyset∅ varnothing∅ partial∂ nabla∇ Reℜ Imℑ alephℵ top⊤ bot⊥ ldots… cdots⋯ dots… vdots⋮ ddots⋱ degree° angle∠ triangle△ square□",
  ),
);
const SIGNS = new Map(
  pairs(
    "times× cdot⋅ div÷ pm± mp∓ ast∗ star⋆ circ∘ bullet∙ oplus⊕ otimes⊗ le≤ leq≤ ge≥ geq≥ ne≠ neq≠ approx≈ equiv≡ sim∼ simeq≃ cong≅ propto∝ ll≪ gg≫ in∈ notin∉ ni∋ subset⊂ subseteq⊆ supset⊃ supseteq⊇ cup∪ cap∩ setminus∖ land∧ wedge∧ lor∨ vee∨ lnot¬ neg¬ forall∀ exists∃ to→ rightarrow→ leftarrow← leftrightarrow↔ Rightarrow⇒ Leftarrow⇐ Leftrightarrow⇔ implies⟹ iff⟺ mapsto↦ uparrow↑ downarrow↓ mid∣ nmid∤ parallel∥ perp⊥ vdash⊢ models⊨ therefore∴ because∵ langle⟨ rangle⟩ lfloor⌊ rfloor⌋ lceil⌈ rceil⌉ lvert| rvert| vert| Vert‖ colon: prime′ backslash\\ {{ }} $$ %% ## && __ |‖",
  ),
);
const BIG = new Map(pairs("sum∑ prod∏ coprod∐ bigcup⋃ bigcap⋂ bigoplus⨁ bigotimes⨂ bigvee⋁ bigwedge⋀"));
const INTEGRALS = new Map(pairs("int∫ iint∬ iiint∭ oint∮"));
const ACCENTS = new Map(pairs("hatˆ widehatˆ bar¯ overline¯ vec→ tilde˜ widetilde˜ dot˙ ddot¨ overrightarrow→"));
const SPACES = new Map(Object.entries({ ",": 0.17, ":": 0.22, ";": 0.28, "!": 0, " ": 0.25, quad: 1, qquad: 2, "\n": 0.25 }));
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp dim ker deg arg hom".split(" "));
const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin gcd lcm det Pr".split(" "));
const IGNORED = new Set("displaystyle textstyle limits nolimits big Big bigg Bigg bigl bigr Bigl Bigr".split(" "));
const TEXTS = new Map(Object.entries({ text: "", textrm: "", mathrm: "", operatorname: "", mbox: "", textbf: "bold", textit: "italic", texttt: "mono" }));
const FACES = new Map(Object.entries({ mathbf: "bold", boldsymbol: "bold", bm: "bold", mathit: "italic", mathsf: "", mathtt: "mono" }));
const DOUBLE = new Map(pairs("Cℂ Hℍ Nℕ Pℙ Qℚ Rℝ Zℤ")); // letters that Unicode has elsewhere
const SCRIPT = new Map(pairs("Bℬ Eℰ Fℱ Hℋ Iℐ Lℒ Mℳ Rℛ"));
const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{ " };
const TABLES = new Set([...Object.keys(FENCES), "matrix", "aligned", "align", "align*", "split", "gathered", "gather", "gather*", "equation", "equation*", "array"]);

const face = (name) => (name ? { class: `tex-${name}` } : {});

class UnknownTex extends Error {}

/**
 * @param {string} source without its dollars
 * @param {boolean} isBlock whether it has lines of its own
 * @returns {object[] | null}
 */
export function tex(source, isBlock = false) {
  if (source.length > LONGEST) return null;
  try {
    const reader = new Reader(source);
    const inner = reader.row();
    if (reader.next) return null;
    return ["math", isBlock ? { display: "block" } : {}, ...inner];
  } catch (error) {
    if (error instanceof UnknownTex) return null;
    throw error;
  }
}

class Reader {
  constructor(source) {
    this.tokens = [...source.matchAll(TOKEN)]
      .map(([whole, command, number, space, sign]) => ({ whole, command, number, space, sign }));
    this.at = 0;
    this.depth = 0;
  }

  /** The next token that is no blank; undefined at the end. */
  get next() {
    while (this.tokens[this.at]?.space) this.at += 1;
    return this.tokens[this.at];
  }

  take(whole) {
    const token = this.next;
    if (!token || (whole !== undefined && token.whole !== whole)) throw new UnknownTex();
    this.at += 1;
    return token;
  }

  has(whole) {
    return this.next?.whole === whole;
  }

  /** Nodes up to what ends them, which stays: the end, a bracket that closes, a cell's or a line's end. */
  row(ends = []) {
    if (++this.depth > DEEPEST) throw new UnknownTex();
    const nodes = [];
    while (this.next && !["}", "&", "\\\\", "\\end", "\\right", ...ends].includes(this.next.whole)) {
      const node = this.scripted();
      if (node) nodes.push(node);
    }
    this.depth -= 1;
    return nodes;
  }

  /** `{...}`, or the one thing that stands there. */
  group() {
    const { number } = this.next ?? {};
    if (number?.length > 1) { // \frac12 is a half
      const parts = [number[0], number.slice(1)].map((digits) => ({ whole: digits, number: digits }));
      this.tokens.splice(this.at, 1, ...parts);
    }
    if (!this.has("{")) {
      const node = this.atom();
      if (!node) throw new UnknownTex();
      return node;
    }
    this.take("{");
    const nodes = this.row();
    this.take("}");
    return nodes.length === 1 ? nodes[0] : ["mrow", {}, ...nodes];
  }

  /** The letters of `{...}` as they are, or the one that stands there. */
  words() {
    if (/^[a-zA-Z]$/.test(this.next?.whole)) return this.take().whole;
    this.take("{");
    let text = "";
    while (this.tokens[this.at] && this.tokens[this.at].whole !== "}") {
      const { whole, command } = this.tokens[this.at];
      if (whole === "{" || (command && !/[^a-zA-Z]/.test(command))) throw new UnknownTex();
      text += command ?? whole;
      this.at += 1;
    }
    this.take("}");
    return text;
  }

  scripted() {
    const base = this.atom();
    let [sub, sup] = [null, null];
    while (this.next && ["_", "^", "'"].includes(this.next.whole)) {
      const { whole } = this.take();
      if (whole === "'") sup = ["mrow", {}, ...(sup ? [sup] : []), ["mo", {}, "′"]];
      else if (whole === "_" && !sub) sub = this.group();
      else if (whole === "^") sup = sup ? ["mrow", {}, sup, this.group()] : this.group();
      else throw new UnknownTex();
    }
    if (!sub && !sup) return base;
    const isBelow = base?.[1]?.movablelimits === "true";
    const tag = isBelow ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return [tag[sub && sup ? 2 : sup ? 1 : 0], {}, base ?? ["mrow", {}], ...[sub, sup].filter(Boolean)];
  }

  atom() {
    if (++this.depth > DEEPEST) throw new UnknownTex();
    const node = this.oneOf(this.next);
    this.depth -= 1;
    return node;
  }

  oneOf(token) {
    if (!token || ["_", "^", "'"].includes(token.whole)) return null; // a script of nothing
    if (token.whole === "{") return this.group();
    if (["}", "&", "\\\\", "\\", "$", "#", "%"].includes(token.whole)) throw new UnknownTex();
    this.take();
    if (token.command !== undefined) return this.command(token.command);
    if (token.number) return ["mn", {}, token.number];
    if (token.whole === "~") return ["mspace", { width: "0.25em" }];
    if (/\p{L}/u.test(token.sign)) return ["mi", {}, token.sign];
    return ["mo", "()[]|/".includes(token.sign) ? { stretchy: "false" } : {}, token.sign === "-" ? "−" : token.sign];
  }

  command(name) {
    if (LETTERS.has(name)) return ["mi", {}, LETTERS.get(name)];
    if (SIGNS.has(name)) return ["mo", { stretchy: "false" }, SIGNS.get(name)];
    if (BIG.has(name)) return ["mo", { movablelimits: "true" }, BIG.get(name)];
    if (INTEGRALS.has(name)) return ["mo", {}, INTEGRALS.get(name)];
    if (FUNCTIONS.has(name)) return ["mi", {}, name];
    if (LIMITS.has(name)) return ["mo", { movablelimits: "true", lspace: "0", rspace: "0.17em" }, name];
    if (SPACES.has(name)) return ["mspace", { width: `${SPACES.get(name)}em` }];
    if (ACCENTS.has(name)) return ["mover", { accent: "true" }, this.group(), ["mo", {}, ACCENTS.get(name)]];
    if (TEXTS.has(name)) return ["mtext", face(TEXTS.get(name)), this.words()];
    if (FACES.has(name)) return ["mrow", face(FACES.get(name)), this.group()];
    if (IGNORED.has(name)) return null;
    const rule = RULES.get(name);
    if (!rule) throw new UnknownTex();
    return rule(this);
  }

  /** A bracket of \left or \right; a full stop is none. */
  fence() {
    const { whole, command } = this.take();
    const sign = command === undefined ? whole : SIGNS.get(command);
    if (!sign || !".()[]{}|‖/⟨⟩⌊⌋⌈⌉<>".includes(sign)) throw new UnknownTex();
    return ["mo", { stretchy: "true", fence: "true" }, sign === "." ? "" : sign];
  }

  table(name) {
    const rows = [];
    if (!TABLES.has(name)) throw new UnknownTex();
    if (name === "array") this.words(); // how its columns are set
    do {
      const cells = [];
      do cells.push(["mtd", {}, ["mrow", {}, ...this.row()]]);
      while (this.has("&") && this.take());
      rows.push(["mtr", {}, ...cells]);
    } while (this.has("\\\\") && this.take());
    this.take("\\end");
    if (this.words() !== name) throw new UnknownTex();
    const isMatrix = name.endsWith("matrix") || name === "array";
    const look = face(/^(align|split)/.test(name) ? "aligned" : name === "cases" ? "cases" : "");
    const table = ["mtable", { ...look, displaystyle: String(!isMatrix) }, ...rows];
    const [open, close] = FENCES[name] ?? "";
    if (!open) return table;
    const bracket = (sign) => ["mo", { stretchy: "true", fence: "true" }, sign.trim()];
    return ["mrow", {}, bracket(open), table, bracket(close)];
  }
}

const fraction = (reader) => ["mfrac", {}, reader.group(), reader.group()];
const around = (open, close, node) => ["mrow", {}, ["mo", {}, open], node, ["mo", {}, close]];

/** The capital letters of a group in another alphabet, whose A is at `start`. */
const alphabet = (start, others) => (reader) => {
  const letters = [...reader.words()];
  if (!letters.every((letter) => /[A-Z]/.test(letter))) throw new UnknownTex();
  const other = (letter) => others.get(letter) ?? String.fromCodePoint(start + letter.charCodeAt(0) - 65);
  return ["mi", {}, letters.map(other).join("")];
};

const RULES = new Map(
  Object.entries({
    frac: fraction,
    dfrac: fraction,
    tfrac: fraction,
    cfrac: fraction,
    binom: (reader) => around("(", ")", ["mfrac", { linethickness: "0" }, reader.group(), reader.group()]),
    sqrt: (reader) => {
      if (!reader.has("[")) return ["msqrt", {}, reader.group()];
      reader.take("[");
      const index = ["mrow", {}, ...reader.row(["]"])];
      reader.take("]");
      return ["mroot", {}, reader.group(), index];
    },
    boxed: (reader) => ["mrow", face("boxed"), reader.group()],
    underline: (reader) => ["munder", {}, reader.group(), ["mo", {}, "_"]],
    mathbb: alphabet(0x1d538, DOUBLE),
    mathcal: alphabet(0x1d49c, SCRIPT),
    bmod: () => ["mo", { lspace: "0.2em", rspace: "0.2em" }, "mod"],
    pmod: (reader) => ["mrow", {}, ["mspace", { width: "0.4em" }], around("(", ")", ["mrow", {}, ["mtext", {}, "mod "], reader.group()])],
    left: (reader) => {
      const open = reader.fence();
      const inner = reader.row();
      reader.take("\\right");
      return ["mrow", {}, open, ...inner, reader.fence()];
    },
    begin: (reader) => reader.table(reader.words()),
  }),
);

const DELIMITERS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false]];
const DOLLARS = /^\$(?![\s$])((?:[^$\\\n]|\\[^\n])+?)(?<!\s)\$(?!\d)/; // no price: a formula touches its dollars

/** Where a formula may begin, for the parser of Markdown; -1 for nowhere. */
function start(source) {
  const places = ["$", "\\(", "\\["].map((sign) => source.indexOf(sign)).filter((place) => place >= 0);
  return places.length > 0 ? Math.min(...places) : -1;
}

function formula(source) {
  for (const [open, close, isBlock] of DELIMITERS) {
    const end = source.startsWith(open) ? source.slice(0, LONGEST + 4).indexOf(close, 2) : -1;
    if (end > 2) return { type: "math", raw: source.slice(0, end + 2), text: source.slice(2, end), isBlock };
  }
  const found = DOLLARS.exec(source);
  return found ? { type: "math", raw: found[0], text: found[1], isBlock: false } : undefined;
}

/** A formula with lines of its own. */
function block(source) {
  const isNear = source.startsWith("$$") || source.startsWith("\\[");
  const found = isNear ? formula(source) : undefined;
  const rest = found && /^[ \t]*(?:\n+|$)/.exec(source.slice(found.raw.length));
  return rest ? { ...found, block: true, raw: found.raw + rest[0] } : undefined;
}

/** Where the first formula with lines of its own stands in the paragraph that begins here; -1 for nowhere. */
function startBlock(source) {
  const end = source.indexOf("\n\n", 1);
  const paragraph = end < 0 ? source : source.slice(0, end);
  for (const { index } of paragraph.matchAll(/\n(?=\$\$|\\\[)/g)) {
    if (block(source.slice(index + 1))) return index + 1;
  }
  return -1;
}

const EXTENSIONS = { inline: [formula], startInline: [start], block: [block], startBlock: [startBlock] };
const MOST_SIGNS = 2_000;

/** What marked's lexer takes as `extensions`: null for a text without formulas, and for one of too many dollars. */
export function extensionsOf(source) {
  const count = source.split(/\$|\\[([]/, MOST_SIGNS + 2).length - 1;
  return count > 0 && count <= MOST_SIGNS ? EXTENSIONS : null;
}
