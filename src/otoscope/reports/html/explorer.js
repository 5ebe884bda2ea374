// The samples' part of the page: filters, list and detail, links to a sample, and the keys.

const LINK = "#sample=";
const TYPING = "input, select, textarea";

class Explorer {
  #book;
  #clips;
  #byKey;
  #form = document.getElementById("filters");
  #panes = document.getElementById("panes");
  #detail = document.getElementById("detail");
  #found = document.getElementById("found");
  #list;
  #shown = null;
  #linking = 0;

  constructor(book, clips) {
    this.#book = book;
    this.#clips = clips;
    this.#byKey = new Map(book.samples.map((sample) => [sample.key, sample]));
    this.#list = new SampleList(
      (sample) => this.#follow(sample),
      (sample) => this.open(sample),
    );
    this.#fillSelects();
    this.#form.addEventListener("input", () => this.#filter());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("reset", () => {
      this.#setDirection(facts.runs.length > 1);
      setTimeout(() => this.#filter());
    });
    this.#form.elements.direction.addEventListener("click", () => {
      this.#setDirection(this.#form.elements.direction.getAttribute("aria-pressed") === "false");
      this.#filter();
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    window.addEventListener("popstate", () => this.followLink());
    window.addEventListener("hashchange", () => this.followLink());
    this.#setDirection(facts.runs.length > 1);
    this.#filter();
  }

  /** Show the samples of which a field has this value, and nothing else. */
  only(name, value) {
    this.#form.reset();
    this.#form.elements[name].value = value;
    document.getElementById("samples").scrollIntoView();
    this.#list.focus();
  }

  /** Write everything again in another language. */
  speak() {
    this.#sayFound();
    this.#list.refresh();
    speak(this.#form);
    speak(this.#detail);
  }

  /** Open the sample that the address names, if it names one. */
  followLink() {
    if (!location.hash.startsWith(LINK)) {
      this.close();
      return;
    }
    const key = keyIn(location.hash);
    const sample = this.#byKey.get(key);
    document.getElementById("samples").scrollIntoView();
    if (sample === undefined) {
      this.#trouble(["html.no_such_sample", { key }]);
      return;
    }
    if (!this.#list.select(sample)) {
      this.#form.reset();
      this.#list.show(chosen(this.#book, this.#state()));
      this.#list.select(sample);
    }
    this.#show(sample);
  }

  /** Open a sample because the reader chose it. */
  open(sample) {
    this.#list.select(sample);
    this.#show(sample);
    this.#link(sample, true);
    if (this.#narrow()) {
      this.#detail.focus({ preventScroll: true });
      document.getElementById("panes").scrollIntoView();
    }
  }

  close() {
    const inside = this.#detail.contains(document.activeElement);
    delete this.#panes.dataset.open;
    if (inside) {
      this.#list.focus();
    }
  }

  #fillSelects() {
    const { task, source, run, result, sign, sort } = this.#form.elements;
    const there = new Set(this.#book.samples.map((sample) => sample.task));
    const categories = new Map();
    for (const sample of this.#book.samples) {
      categories.set(sample.category, (categories.get(sample.category) ?? new Set()).add(sample.task));
    }
    task.append(option("", "html.all"));
    for (const [category, tasks] of categories) {
      task.append(option(`category/${category}`, `cell.${category}`));
      for (const name of tasks) {
        task.append(element("option", { value: name, text: `\u2003${name}` }));
      }
    }
    source.append(option("", "html.all"));
    for (const name of [...new Set(this.#book.samples.map((sample) => sample.source))].sort()) {
      source.append(element("option", { value: name, text: name }));
    }
    run?.append(
      option("", "html.any_run"),
      ...facts.runs.map((one, index) =>
        element("option", { value: index, ...runNamed(one) }),
      ),
    );
    result.append(
      option("", "html.all"),
      ...Object.keys(RESULTS).map((name) => option(name, `html.state.${name}`)),
    );
    const pair = facts.runs.length > 1;
    const signs = [...(pair ? Object.keys(PAIR_SIGNS) : []), ...Object.keys(SIGNS)];
    sign.append(option("", "html.all"), ...signs.map((name) => option(name, `html.sign.${name}`)));
    const sorts = Object.keys(SORTS).filter((name) => pair || name !== "difference");
    sort.append(...sorts.map((name) => option(name, `html.sort.${name}`)));
    if (pair) {
      sort.querySelector("[value=difference]").defaultSelected = true;
    }
    if (there.size === 1) {
      task.disabled = true;
    }
  }

  #state() {
    const value = (name) => this.#form.elements[name]?.value ?? "";
    return {
      search: value("search"),
      task: value("task"),
      source: value("source"),
      run: value("run"),
      result: value("result"),
      sign: value("sign"),
      sort: value("sort"),
      descending: this.#form.elements.direction.getAttribute("aria-pressed") === "true",
    };
  }

  #setDirection(descending) {
    const button = this.#form.elements.direction;
    button.setAttribute("aria-pressed", String(descending));
    button.firstElementChild.textContent = descending ? "↓" : "↑";
  }

  #filter() {
    this.#list.show(chosen(this.#book, this.#state()));
    this.#sayFound();
    this.#trouble(null);
    if (this.#shown === null) {
      this.#show(null);
    }
  }

  #sayFound() {
    const values = { shown: count(this.#list.length), count: count(this.#book.samples.length) };
    this.#found.textContent = say(this.#list.length ? "html.found" : "html.found_none", values);
  }

  #trouble(said) {
    const note = document.getElementById("explorer-trouble");
    note.hidden = said === null;
    note.replaceChildren(...(said === null ? [] : [element("span", { said })]));
  }

  #follow(sample) {
    if (this.#narrow() && this.#panes.dataset.open === undefined) {
      return;
    }
    this.#show(sample);
    clearTimeout(this.#linking);
    this.#linking = setTimeout(() => this.#link(sample, false), 300);
  }

  #link(sample, remember) {
    const address = LINK + encodeURIComponent(sample.key);
    if (address !== location.hash) {
      history[remember ? "pushState" : "replaceState"](null, "", address);
    }
  }

  #show(sample) {
    this.#shown = sample;
    if (sample === null) {
      this.#detail.replaceChildren(element("p", { class: "empty", said: "html.choose" }));
      return;
    }
    this.#panes.dataset.open = "";
    this.#detail.replaceChildren(this.#heading(sample), ...detailOf(sample, this.#book, this.#clips));
    this.#detail.scrollTop = 0;
  }

  #heading(sample) {
    const back = element("button", { type: "button", class: "back", said: "html.back" });
    back.addEventListener("click", () => this.close());
    const step = (rows, key, sign) => {
      const button = element("button", { type: "button", "aria-label": [key], title: [key], text: sign });
      button.addEventListener("click", () => this.#list.move(rows));
      return button;
    };
    const link = element("a", { href: LINK + encodeURIComponent(sample.key), said: "html.link" });
    return element(
      "header",
      { class: "detail-head" },
      element(
        "div",
        { class: "steps" },
        back,
        step(-1, "html.previous", "↑"),
        step(1, "html.next", "↓"),
        link,
      ),
      element("h3", {}, element("bdi", { text: sample.key })),
    );
  }

  #narrow() {
    return getComputedStyle(this.#panes).getPropertyValue("--narrow").trim() === "1";
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const here = document.activeElement;
    if (event.key === "Escape") {
      if (here === this.#form.elements.search || this.#detail.contains(here)) {
        this.close();
        this.#list.focus();
      }
      return;
    }
    if (here?.matches(TYPING)) {
      return;
    }
    const inList = here?.id === "list";
    const inListOnly = {
      ArrowDown: () => this.#list.move(1),
      ArrowUp: () => this.#list.move(-1),
      PageDown: () => this.#list.move(this.#list.page()),
      PageUp: () => this.#list.move(-this.#list.page()),
      Home: () => this.#list.move(-Infinity),
      End: () => this.#list.move(Infinity),
      Enter: () => this.#enter(),
    };
    const anywhere = {
      j: () => this.#list.move(1),
      k: () => this.#list.move(-1),
      p: () => this.#play(),
      "/": () => this.#form.elements.search.focus(),
    };
    const act = anywhere[event.key] ?? (inList ? inListOnly[event.key] : undefined);
    if (act !== undefined) {
      event.preventDefault();
      act();
    }
  }

  #enter() {
    if (this.#list.active !== undefined) {
      this.open(this.#list.active);
      this.#detail.focus({ preventScroll: true });
    }
  }

  #play() {
    const audio = this.#detail.querySelector("audio");
    if (audio?.paused) {
      audio.play().catch(() => undefined); // the player says itself what is wrong with a clip
    } else {
      audio?.pause();
    }
  }
}

function option(value, key) {
  return element("option", { value, said: key });
}

function keyIn(hash) {
  try {
    return decodeURIComponent(hash.slice(LINK.length));
  } catch {
    return hash.slice(LINK.length);
  }
}
