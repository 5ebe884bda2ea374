// The page as a whole: language, light and dark, charts, print, and the start.

/** What the reader chose before, where the browser keeps it. */
const memory = {
  get(name) {
    try {
      return localStorage.getItem(`otoscope.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`otoscope.${name}`, value);
    } catch {
      // Pages from a disk or in a private window may not keep anything.
    }
  },
};

let explorer = null;
let figures = null;

function press(name, value) {
  for (const button of document.querySelectorAll(`.switch [data-${name}]`)) {
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
  }
}

async function setLanguage(wanted) {
  language = wanted;
  document.documentElement.lang = wanted;
  press("language", wanted);
  speak(document);
  explorer?.speak();
  figures ??= await unpack("packed-figures").catch(() => ({}));
  const drawn = figures[language] ?? {};
  for (const place of document.querySelectorAll("[data-figure]")) {
    if (place.dataset.figure in drawn) {
      const chart = new DOMParser().parseFromString(drawn[place.dataset.figure], "image/svg+xml");
      place.replaceChildren(document.importNode(chart.documentElement, true));
    }
  }
}

function setScheme(wanted) {
  if (wanted === "auto") {
    delete document.documentElement.dataset.scheme;
  } else {
    document.documentElement.dataset.scheme = wanted;
  }
  press("scheme", wanted);
}

for (const button of document.querySelectorAll(".switch [data-language]")) {
  button.addEventListener("click", () => {
    memory.set("language", button.dataset.language);
    setLanguage(button.dataset.language);
  });
}
for (const button of document.querySelectorAll(".switch [data-scheme]")) {
  button.addEventListener("click", () => {
    memory.set("scheme", button.dataset.scheme);
    setScheme(button.dataset.scheme);
  });
}
for (const button of document.querySelectorAll("[data-filter]")) {
  button.addEventListener("click", () => explorer?.only(button.dataset.filter, button.dataset.value));
}

document.querySelectorAll(".scroll, .drawing").forEach(reachable);

// What is folded away on the screen is printed.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((one) => one.setAttribute("open", ""));
});
window.addEventListener("afterprint", () => opened.forEach((one) => one.removeAttribute("open")));

const chosenScheme = memory.get("scheme");
if (chosenScheme === "light" || chosenScheme === "dark") {
  setScheme(chosenScheme);
}
const chosenLanguage = memory.get("language");
if (chosenLanguage in facts.texts && chosenLanguage !== language) {
  setLanguage(chosenLanguage);
}

async function start() {
  try {
    const book = await unpack("packed-samples");
    book.samples.forEach((sample, index) => {
      sample.index = index;
    });
    explorer = new Explorer(book, JSON.parse(document.getElementById("carried-clips").textContent));
    if (location.hash.startsWith(LINK)) {
      explorer.followLink();
    }
  } catch (error) {
    const note = document.getElementById("explorer-trouble");
    note.hidden = false;
    note.append(element("span", { said: ["html.not_opened", { why: String(error) }] }));
  }
}

if (document.getElementById("samples")) {
  start();
}
