// Both languages' texts, and how elements are built from them. All text is set as text, never as HTML.

const facts = JSON.parse(document.getElementById("facts").textContent);
const SPOKEN_ATTRIBUTES = ["aria-label", "title", "placeholder"];
let language = facts.language;

function say(key, values = {}) {
  const text = facts.texts[language][key];
  if (text === undefined) {
    return key.slice(key.indexOf(".") + 1).replaceAll("_", " ");
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? plain(values[name]) : whole));
}

function plain(value) {
  return typeof value === "object" ? say(value.key, value.values) : String(value);
}

function saidIn(key, values) {
  return { key, values };
}

/** What says a run's letter and name, with the control that it is, as an element's option. */
function runNamed(run) {
  const name = `${run.letter}: ${run.name}`;
  return run.control
    ? { said: ["control.name", { name, control: saidIn(`control.${run.control}`, {}) }] }
    : { text: name };
}

/** Write all texts under `root` in the present language. */
function speak(root) {
  for (const node of root.querySelectorAll("[data-text]")) {
    node.textContent = say(node.dataset.text, JSON.parse(node.dataset.values ?? "{}"));
  }
  for (const name of SPOKEN_ATTRIBUTES) {
    for (const node of root.querySelectorAll(`[data-say-${name}]`)) {
      node.setAttribute(name, plain(JSON.parse(node.getAttribute(`data-say-${name}`))));
    }
  }
}

/**
 * Build an element. `options` are attributes; `text` is a foreign text; `said` is a key, or key and values;
 * an attribute whose value is an array is said likewise.
 */
function element(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [option, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (option === "text") {
      node.textContent = value;
    } else if (option === "said") {
      const [key, values] = [value].flat();
      node.dataset.text = key;
      if (values) {
        node.dataset.values = JSON.stringify(values);
      }
      node.textContent = say(key, values);
    } else if (Array.isArray(value)) {
      node.setAttribute(`data-say-${option}`, JSON.stringify(saidIn(...value)));
      node.setAttribute(option, say(...value));
    } else {
      node.setAttribute(option, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) {
    node.setAttribute(attribute, value);
  }
  node.append(...children);
  return node;
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }
});

/** See to it that what can be scrolled sideways is reached by the keyboard. */
function reachable(node) {
  resized.observe(node);
  return node;
}

// --- numbers, written as the tables write them ---------------------------------------------------------

const MINUS = "\u2212";

function score(value) {
  return value === undefined || value === null
    ? "n/a"
    : String(Math.round(value * 100) / 100).replace("-", MINUS);
}

function signed(value) {
  const text = score(value);
  return value > 0 ? `+${text}` : text;
}

function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 1000) {
      return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    }
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}
