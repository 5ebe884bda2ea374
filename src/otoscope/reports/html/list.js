// The list of samples: a listbox whose rows are built as they come into view.

const MARGIN = 6; // rows built beyond what is seen

class SampleList {
  #box = document.getElementById("list");
  #rows = document.getElementById("rows");
  #built = new Map();
  #samples = [];
  #active = -1;
  #height = 0;

  /** `onActive(sample)`: another row is the active one by the reader's doing; `onOpen(sample)`: it was opened. */
  constructor(onActive, onOpen) {
    this.#box.addEventListener("scroll", () => this.#build(), { passive: true });
    new ResizeObserver(() => this.refresh()).observe(this.#box);
    this.#box.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option]");
      if (row) {
        this.#activate(Number(row.dataset.index));
        onOpen(this.active);
      }
    });
    this.onActive = onActive;
  }

  get active() {
    return this.#samples[this.#active];
  }

  get position() {
    return this.#active;
  }

  get length() {
    return this.#samples.length;
  }

  /** Show these samples. The active one stays so if it is among them. */
  show(samples) {
    const before = this.active;
    this.#samples = samples;
    this.#active = samples.indexOf(before);
    this.#box.scrollTop = 0;
    this.refresh();
    if (this.#active >= 0) {
      this.#reveal();
    }
  }

  /** Make a sample the active one and scroll to it; false when it is not shown. */
  select(sample) {
    const index = this.#samples.indexOf(sample);
    if (index < 0) {
      return false;
    }
    this.#activate(index);
    return true;
  }

  /** Go some rows on. */
  move(rows) {
    if (this.#samples.length === 0) {
      return;
    }
    const index = this.#active < 0 ? 0 : this.#active + rows;
    this.#activate(Math.min(this.#samples.length - 1, Math.max(0, index)));
    this.onActive(this.active);
  }

  page() {
    return Math.max(1, Math.floor(this.#box.clientHeight / this.#height) - 1);
  }

  focus() {
    this.#box.focus({ preventScroll: true });
  }

  /** Build all rows in view anew. */
  refresh() {
    this.#height = parseFloat(getComputedStyle(this.#box).getPropertyValue("--row"));
    this.#built.clear();
    this.#rows.replaceChildren();
    this.#rows.style.height = `${this.#samples.length * this.#height}px`;
    this.#build();
  }

  #activate(index) {
    const before = this.#active;
    this.#active = index;
    for (const changed of [before, index]) {
      this.#built.get(changed)?.remove();
      this.#built.delete(changed);
    }
    this.#reveal();
    this.#build();
  }

  #reveal() {
    const top = this.#active * this.#height;
    if (top < this.#box.scrollTop) {
      this.#box.scrollTop = top;
    } else if (top + this.#height > this.#box.scrollTop + this.#box.clientHeight) {
      this.#box.scrollTop = top + this.#height - this.#box.clientHeight;
    }
  }

  #build() {
    const first = Math.max(0, Math.floor(this.#box.scrollTop / this.#height) - MARGIN);
    const seen = Math.ceil(this.#box.clientHeight / this.#height) + 2 * MARGIN;
    const last = Math.min(this.#samples.length, first + seen);
    for (const [index, row] of this.#built) {
      if ((index < first || index >= last) && index !== this.#active) {
        row.remove();
        this.#built.delete(index);
      }
    }
    const wanted = new Set(Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset));
    if (this.#active >= 0) {
      wanted.add(this.#active);
    }
    for (const index of wanted) {
      if (!this.#built.has(index)) {
        const row = this.#row(index);
        this.#built.set(index, row);
        this.#rows.append(row);
      }
    }
    if (this.#active >= 0) {
      this.#box.setAttribute("aria-activedescendant", `row-${this.#active}`);
    } else {
      this.#box.removeAttribute("aria-activedescendant");
    }
  }

  #row(index) {
    const sample = this.#samples[index];
    const row = element("div", {
      role: "option",
      id: `row-${index}`,
      class: "row",
      "aria-selected": String(index === this.#active),
      "aria-setsize": this.#samples.length,
      "aria-posinset": index + 1,
    });
    row.dataset.index = index;
    row.style.transform = `translateY(${index * this.#height}px)`;
    const about = [sample.task, sample.source];
    if (sample.clip?.seconds !== undefined) {
      about.push(`${sample.clip.seconds.toFixed(1)} s`);
    }
    row.append(
      element(
        "span",
        { class: "text" },
        element("span", { class: "question", dir: "auto", text: sample.question.slice(0, 300) }),
        element("span", { class: "about" }, element("span", { text: about.join(" · ") }), ...marks(sample)),
      ),
      element(
        "span",
        { class: "results" },
        ...facts.runs.map((run, number) =>
          result(sample.runs[number], facts.runs.length > 1 ? run.letter : null),
        ),
      ),
    );
    return row;
  }
}

/** What a row says beside task and source. */
function marks(sample) {
  const names = new Set(sample.runs.filter(Boolean).flatMap((part) => part.flags ?? []));
  if (sample.runs.some((part) => part?.disagree)) {
    names.add("disagree");
  }
  return [...names].map((name) => element("span", { class: `mark ${name}`, said: `html.mark.${name}` }));
}

/** One run's result of a sample: in words, as a number, and where it stands between 0 and 10. */
function result(part, letter) {
  const scored = part?.status === "scored";
  const state = scored ? part.result : (part?.status ?? "absent");
  return element(
    "span",
    { class: `result ${state}` },
    element(
      "span",
      {},
      letter === null ? null : element("span", { class: "letter", text: letter }),
      letter === null ? null : " ",
      element("span", { class: "word", said: `html.state.${state}` }),
    ),
    scored ? element("span", { class: "number", text: part.score.toFixed(1) }) : null,
    scored ? strip(part) : null,
  );
}

function strip(part) {
  return svg(
    "svg",
    { class: "strip", viewBox: "-6 -6 112 12", "aria-hidden": "true" },
    svg("path", { class: "axis", d: "M0 0H100" }),
    svg("circle", { class: "reference", cx: 10 * part.reference, cy: 0, r: 4.5 }),
    svg("circle", { class: "answer", cx: 10 * part.score, cy: 0, r: 3.2 }),
  );
}
