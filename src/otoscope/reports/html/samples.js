// The samples: unpacked, and filtered, searched and sorted.

const SEARCHED = 20000; // characters of each text
const DIFFER = 2; // points by which two runs' scores differ a lot

/** Read a block of compressed JSON. Rejects where the browser cannot decompress. */
async function unpack(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) {
    bytes[index] = text.charCodeAt(index);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function lead(part) {
  return part?.score === undefined ? undefined : part.score - part.reference;
}

function difference(sample) {
  const [first, second] = sample.runs;
  return first?.score === undefined || second?.score === undefined ? undefined : second.score - first.score;
}

/** The parts of a sample that a filter looks at: those of one run, or of all. */
function partsOf(sample, run) {
  return (run === "" ? sample.runs : [sample.runs[Number(run)]]).filter(Boolean);
}

const RESULTS = {
  win: (part) => part.result === "win",
  tie: (part) => part.result === "tie",
  loss: (part) => part.result === "loss",
  failed: (part) => part.status === "failed",
  pending: (part) => part.status === "pending",
};

const SIGNS = {
  disagree: (part) => part.disagree === true,
  flagged: (part) => part.flags !== undefined,
  blank: (part) => Boolean(part.flags?.includes("blank")),
  cut: (part) => Boolean(part.flags?.includes("cut")),
  cannot_hear: (part) => Boolean(part.flags?.includes("cannot_hear")),
  other_language: (part) => Boolean(part.flags?.includes("other_language")),
  addresses_judge: (part) => Boolean(part.flags?.includes("addresses_judge")),
  filtered: (part) => part.answer?.raw !== undefined,
  shortened: (part) => part.sent?.cut !== undefined,
  asked_again: (part) =>
    part.replies?.length > 1 ||
    Object.values(part.verdicts ?? {}).some((verdict) => verdict.replies.length > 1),
};

/** Of two runs. */
const PAIR_SIGNS = {
  differ: (sample) => Math.abs(difference(sample)) >= DIFFER,
  a_better: (sample) => difference(sample) < 0,
  b_better: (sample) => difference(sample) > 0,
};

const SORTS = {
  order: (sample) => sample.index,
  score: (sample, part) => part?.score,
  lead: (sample, part) => lead(part),
  apart: (sample, part) => part?.apart,
  difference: (sample) => (difference(sample) === undefined ? undefined : Math.abs(difference(sample))),
  length: (sample, part) => part?.answer?.text.length,
  seconds: (sample) => sample.clip?.seconds,
  key: (sample) => sample.key,
};

function searchable(sample, descriptions) {
  sample.searchable ??= [
    sample.key,
    sample.question,
    sample.reference,
    descriptions[sample.description],
    ...sample.runs.filter(Boolean).map((part) => part.answer?.raw ?? part.answer?.text ?? ""),
    ...sample.runs.filter(Boolean).map((part) => part.failure?.message ?? ""),
  ]
    .map((text) => text.slice(0, SEARCHED))
    .join("\n")
    .toLowerCase();
  return sample.searchable;
}

/** The samples that pass, sorted; what has no value to sort by comes last. */
function chosen(book, state) {
  const wanted = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const passes = (sample) => {
    if (state.task !== "" && state.task !== sample.task && state.task !== `category/${sample.category}`) {
      return false;
    }
    if (state.source !== "" && state.source !== sample.source) {
      return false;
    }
    if (state.sign in PAIR_SIGNS && !PAIR_SIGNS[state.sign](sample)) {
      return false;
    }
    const fits = (part) => (RESULTS[state.result]?.(part) ?? true) && (SIGNS[state.sign]?.(part) ?? true);
    if ((state.result !== "" || state.sign in SIGNS) && !partsOf(sample, state.run).some(fits)) {
      return false;
    }
    return wanted.every((word) => searchable(sample, book.descriptions).includes(word));
  };
  const run = state.run === "" ? 0 : Number(state.run);
  const keyed = book.samples
    .filter(passes)
    .map((sample) => [SORTS[state.sort](sample, sample.runs[run]), sample]);
  const sign = state.descending ? -1 : 1;
  keyed.sort(([a, first], [b, second]) => {
    if (a === undefined || b === undefined) {
      return (a === undefined) - (b === undefined) || first.index - second.index;
    }
    const order = a < b ? -1 : Number(a > b);
    return sign * order || first.index - second.index;
  });
  return keyed.map(([, sample]) => sample);
}
