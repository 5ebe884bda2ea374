// One sample, with everything that is known of it.

const FOLDED = 1200; // characters of a text that are shown before it is unfolded
const FOLDED_LINES = 14;

/** A foreign text, as it is; a long one is folded. */
function quoted(text, options = {}) {
  const block = element("div", { class: `quoted ${options.class ?? ""}`, dir: "auto" });
  const bound = foldAt(text, options.bound ?? FOLDED);
  if (bound >= text.length) {
    block.textContent = text;
    return block;
  }
  const shown = element("span", { text: `${text.slice(0, bound)}…` });
  const button = element("button", {
    type: "button",
    class: "unfold",
    "aria-expanded": "false",
    said: ["html.unfold", { count: count(text.length) }],
  });
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "false";
    shown.textContent = open ? text : `${text.slice(0, bound)}…`;
    button.setAttribute("aria-expanded", String(open));
    button.dataset.text = open ? "html.fold" : "html.unfold";
    button.textContent = say(button.dataset.text, JSON.parse(button.dataset.values));
  });
  block.append(shown, button);
  return block;
}

function foldAt(text, bound) {
  if (text.length <= bound * 1.25 && text.split("\n", FOLDED_LINES + 1).length <= FOLDED_LINES) {
    return text.length;
  }
  let end = Math.min(bound, text.length);
  let line = -1;
  for (let lines = 0; lines < FOLDED_LINES; lines += 1) {
    line = text.indexOf("\n", line + 1);
    if (line < 0) {
      break;
    }
  }
  if (line >= 0 && line < end) {
    end = line;
  }
  // Not between the two halves of a character.
  return /[\uD800-\uDBFF]/.test(text[end - 1] ?? "") ? end - 1 : end;
}

/** A part with a heading. */
function passage(key, ...children) {
  return element("section", { class: "part" }, element("h4", { said: key }), ...children);
}

function detailOf(sample, book, clips) {
  const several = facts.runs.length > 1;
  return [
    passage("html.question", quoted(sample.question, { class: "asked" })),
    player(sample, clips),
    ...(several ? [] : [sentLine(sample.runs[0])].filter(Boolean)),
    ...(several ? [passage("html.reference_answer", quoted(sample.reference))] : []),
    several
      ? element("div", { class: "runs" }, ...facts.runs.map((run, index) => runPart(sample.runs[index], run)))
      : element("div", {}, ...onlyRun(sample, sample.runs[0])),
    passage(
      "html.description",
      quoted(book.descriptions[sample.description], { class: "small", bound: 600 }),
    ),
  ];
}

/** With one run, its answer stands beside the reference. */
function onlyRun(sample, found) {
  const answer = found?.answer ? passage("html.answer", ...answerBlocks(found)) : null;
  return [
    element("div", { class: "beside" }, answer, passage("html.reference_answer", quoted(sample.reference))),
    ...rest(found),
  ];
}

function runPart(found, run) {
  return element(
    "section",
    { class: "run" },
    element(
      "h4",
      { class: "of-run" },
      element("span", { class: "letter", text: run.letter }),
      " ",
      element("bdi", { text: run.name }),
      run.control ? element("span", { class: "mark control", said: `control.${run.control}` }) : null,
    ),
    sentLine(found),
    found ? null : element("p", { class: "note", said: "html.not_in_run" }),
    ...(found?.answer ? answerBlocks(found) : []),
    ...rest(found),
  );
}

function answerBlocks(found) {
  const { text, raw, filter, reasoning } = found.answer;
  const blocks = [
    text.trim() === ""
      ? element("p", { class: "note", said: "html.blank_answer" })
      : quoted(text, { class: "answer" }),
  ];
  if (raw !== undefined) {
    blocks.push(labelled(["html.raw_answer", { filter }], quoted(raw, { class: "small", bound: 400 })));
  }
  if (reasoning) {
    blocks.push(labelled("html.reasoning", quoted(reasoning, { class: "small", bound: 400 })));
  }
  return blocks;
}

function labelled(said, child) {
  return element("div", { class: "labelled" }, element("p", { class: "label", said }), child);
}

function rest(found) {
  if (!found) {
    return [];
  }
  const blocks = [];
  const below = Object.values(found.verdicts ?? {}).some((verdict) => verdict.failure);
  if (found.failure && !below) {
    blocks.push(failureBlock(found.failure, found.stage));
  } else if (found.status === "pending") {
    blocks.push(element("p", { class: "note", said: "html.sample_pending" }));
  }
  if (found.verdicts) {
    blocks.push(verdictTable(found));
  }
  for (const [key, replies] of [
    ["html.model_replies", found.replies],
    ["html.superseded", found.superseded],
  ]) {
    if (replies?.length) {
      blocks.push(passage(key, ...replies.map((reply) => replyLine(reply, replies.length > 1))));
    }
  }
  return blocks;
}

function failureBlock(failure, stage) {
  return element(
    "div",
    { class: "failure" },
    element(
      "p",
      {},
      element("strong", { said: `failure.${failure.kind}` }),
      " ",
      element("span", { class: "quiet", said: `html.stage.${stage}` }),
    ),
    element("p", { class: "quoted", dir: "auto", text: failure.message }),
    failure.attempts > 1
      ? element("p", { class: "quiet", said: ["html.attempts", { count: failure.attempts }] })
      : null,
  );
}

function verdictTable(found) {
  const head = element("tr", {}, element("th", { scope: "col", said: "html.order" }));
  for (const key of ["html.answer", "html.reference", "html.lead"]) {
    head.append(element("th", { scope: "col", said: key }));
  }
  head.append(element("th", { scope: "col", class: "text", said: "html.judge_replies" }));
  const body = element("tbody");
  for (const [order, verdict] of Object.entries(found.verdicts)) {
    body.append(verdictRow(order, verdict));
  }
  if (found.score !== undefined && Object.keys(found.verdicts).length > 1) {
    body.append(
      element(
        "tr",
        { class: "total" },
        element("th", { scope: "row", said: "html.mean" }),
        element("td", { class: "main", text: score(found.score) }),
        element("td", { text: score(found.reference) }),
        element("td", { text: signed(lead(found)) }),
        element(
          "td",
          { class: "text" },
          element("span", { said: `html.state.${found.result}` }),
          found.disagree ? element("span", { class: "mark disagree", said: "html.mark.disagree" }) : null,
        ),
      ),
    );
  }
  const table = element("table", { class: "verdicts" }, element("thead", {}, head), body);
  return passage("html.verdicts", reachable(element("div", { class: "scroll" }, table)));
}

function verdictRow(order, verdict) {
  const replies = element(
    "td",
    { class: "text" },
    verdict.failure ? failureBlock(verdict.failure, "verdict") : null,
    ...verdict.replies.map((reply) =>
      element("div", { class: "reply" }, replyText(reply), replyLine(reply, false)),
    ),
    verdict.kind ? element("span", { class: "quiet", said: `html.kind.${verdict.kind}` }) : null,
  );
  return element(
    "tr",
    {},
    element("th", { scope: "row", said: `html.${order}` }),
    element("td", { class: "main", text: score(verdict.answer) }),
    element("td", { text: score(verdict.reference) }),
    element("td", { text: verdict.answer === undefined ? "" : signed(verdict.answer - verdict.reference) }),
    replies,
  );
}

function replyText(reply) {
  return element(
    "div",
    {},
    reply.reasoning ? quoted(reply.reasoning, { class: "small thinking", bound: 200 }) : null,
    reply.text === undefined
      ? element("span", { class: "quiet", said: "html.no_text" })
      : quoted(reply.text, { class: "verbatim", bound: 400 }),
  );
}

/** What a reply cost, and how it ended where that is not as usual; with `withText` also what it said. */
function replyLine(reply, withText) {
  const told = element("p", { class: "told" });
  const add = (node) => told.append(told.childNodes.length ? " · " : "", node);
  if (reply.model) {
    add(element("bdi", { text: reply.model }));
  }
  if (reply.in !== undefined || reply.out !== undefined) {
    add(element("span", { said: ["html.tokens", { in: count(reply.in ?? 0), out: count(reply.out ?? 0) }] }));
  }
  add(element("span", { text: `${reply.latency} s` }));
  if (reply.finish && reply.finish !== "stop") {
    add(element("span", { said: ["html.finish", { reason: reply.finish }] }));
  }
  if (reply.attempts) {
    add(element("span", { said: ["html.attempts", { count: reply.attempts }] }));
  }
  if (reply.sent) {
    add(element("span", { said: ["html.sent_with", { what: reply.sent }] }));
  }
  return withText ? element("div", { class: "reply" }, replyText(reply), told) : told;
}

// --- the clip ------------------------------------------------------------------------------------------

function player(sample, clips) {
  const source = clips[sample.key] ?? sample.audio;
  const place = sample.audio === undefined ? sample.path : decodeURIComponent(sample.audio);
  const missing = () =>
    element("p", { class: "note", role: "status", said: ["html.clip_missing", { place }] });
  const block = element("section", { class: "part clip" }, element("h4", { said: "html.clip" }));
  if (source === undefined) {
    block.append(element("p", { class: "note", said: ["html.clip_unknown", { path: sample.path }] }));
  } else {
    const audio = element("audio", {
      controls: true,
      preload: "metadata",
      "aria-label": ["html.clip_of", { path: sample.path }],
    });
    audio.addEventListener("error", () => audio.replaceWith(missing()));
    audio.src = source;
    block.append(audio);
  }
  block.append(element("p", { class: "told" }, clipFacts(sample)));
  return block;
}

function clipFacts(sample) {
  const line = element("span", {}, element("bdi", { text: sample.path }));
  addFacts(sample.clip ?? {}, (node) => line.append(" · ", node));
  return line;
}

/** What was sent in place of the clip as it lies; nothing where that was sent. */
function sentLine(found) {
  const sent = found?.sent;
  if (!sent) {
    return null;
  }
  const line = element("p", { class: "told sent" }, element("span", { said: "html.clip_sent" }));
  let between = " ";
  const add = (node) => {
    line.append(between, node);
    between = " · ";
  };
  if (sent.control === "no-audio") {
    add(element("span", { said: "html.sent_no_audio" }));
  } else if (sent.control === "silence") {
    add(element("span", { said: "html.sent_silence" }));
  } else if (sent.from !== undefined) {
    add(element("span", { said: ["html.sent_other", { path: sent.from }] }));
  }
  if (sent.cut !== undefined) {
    const values = { cut: sent.cut.toFixed(1), seconds: sent.whole.toFixed(1) };
    add(element("span", { said: ["html.sent_cut", values] }));
  }
  addFacts(sent, add);
  return line;
}

function addFacts({ seconds, rate, channels, format, bytes, changed }, add) {
  if (seconds !== undefined) {
    add(`${seconds.toFixed(1)} s`);
  }
  if (rate !== undefined) {
    add(`${rate / 1000} kHz`);
  }
  if (channels !== undefined) {
    add(element("span", { said: ["html.channels", { count: channels }] }));
  }
  for (const text of [format, bytes === undefined ? undefined : size(bytes)]) {
    if (text !== undefined) {
      add(text);
    }
  }
  if (changed) {
    add(element("span", { said: ["html.clip_changed", { how: changed.join(", ") }] }));
  }
}
