"use strict";
/* What all interactions share. An element with data-whence="name ..." is switched on by the components of these names;
   each stands in a file of its own beside this one and adds to a page that is readable without it. */
const whence = (() => {
  const components = {};

  /* An element with attributes and children; texts become text, never markup. */
  function node(tag, attributes = {}, ...children) {
    const made = tag.startsWith("svg:")
      ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  /* Switch on everything below `root` that is not yet on. */
  function enhance(root) {
    for (const element of root.querySelectorAll("[data-whence]")) {
      if ("whenceOn" in element.dataset) continue;
      element.dataset.whenceOn = "";
      for (const name of element.dataset.whence.split(" ")) components[name]?.(element);
    }
  }

  /* A number as the pages write it: four significant digits, and a sign where signs mean something. */
  function number(value, signed = false) {
    if (!Number.isFinite(value)) return String(value);
    const size = Math.abs(value);
    const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? size.toExponential(2) : String(+size.toPrecision(4));
    return (value < 0 ? "−" : signed ? "+" : "") + text;
  }

  /* A segmented switch: one of `choices` ([value, label] pairs) is chosen; `chosen(value)` is told. */
  function choice(label, choices, value, chosen) {
    const group = node("div", {class: "choice", role: "radiogroup", "aria-label": label});
    const buttons = choices.map(([own, text]) => node("button", {type: "button", role: "radio"}, text));
    function choose(at, focus) {
      buttons.forEach((button, i) => {
        button.setAttribute("aria-checked", String(i === at));
        button.tabIndex = i === at ? 0 : -1;
      });
      if (focus) buttons[at].focus();
    }
    buttons.forEach((button, i) => {
      button.addEventListener("click", () => { choose(i); chosen(choices[i][0]); });
      button.addEventListener("keydown", event => {
        const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
        if (!step) return;
        event.preventDefault();
        const at = (i + step + buttons.length) % buttons.length;
        choose(at, true);
        chosen(choices[at][0]);
      });
    });
    choose(Math.max(0, choices.findIndex(([own]) => own === value)));
    group.append(...buttons);
    return group;
  }

  /* A button that does something and says so for a moment. */
  function action(text, done, act) {
    const button = node("button", {type: "button", class: "action"}, text);
    button.addEventListener("click", async () => {
      const result = await act();
      button.textContent = result === false ? "not possible here" : done;
      setTimeout(() => { button.textContent = text; }, 1500);
    });
    return button;
  }

  /* Put a text on the clipboard; pages opened from a file may only use the older way. */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = node("textarea", {style: "position:fixed;opacity:0"}, text);
      document.body.append(area);
      area.select();
      const worked = document.execCommand("copy");
      area.remove();
      return worked;
    }
  }

  /* Hand a text to the reader as a file. */
  function download(name, text, type) {
    const link = node("a", {href: URL.createObjectURL(new Blob([text], {type})), download: name});
    document.body.append(link);
    link.click();
    setTimeout(() => { URL.revokeObjectURL(link.href); link.remove(); }, 1000);
  }

  /* One tip for the whole page: `tip.show(element, lines)` beside an element, `tip.hide()`. The first line is bold. */
  const tip = (() => {
    let box = null;
    function show(element, lines) {
      if (!box) {
        box = node("div", {class: "tip", role: "tooltip", id: "whence-tip"});
        document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
      }
      (element.closest(".whence") ?? document.body).append(box);
      box.replaceChildren(...lines.map((line, i) => node(i ? "div" : "b", {dir: "auto"}, line)));
      box.hidden = false;
      element.setAttribute("aria-describedby", "whence-tip");
      const at = element.getBoundingClientRect(), own = box.getBoundingClientRect();
      const left = Math.min(Math.max(4, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 4);
      const above = at.top - own.height - 6;
      box.style.left = `${left}px`;
      box.style.top = `${above >= 4 ? above : at.bottom + 6}px`;
    }
    function hide() {
      if (box) box.hidden = true;
    }
    return {show, hide};
  })();

  /* Tell what is pointed at or focused inside an element, and leave when the pointer has gone: from the element, or
     with "pointerout" from each of its parts, so that nothing is told in the gaps between them. */
  function pointed(element, tell, leave, gone = "pointerleave") {
    for (const event of ["pointerover", "focusin"]) element.addEventListener(event, tell);
    for (const event of [gone, "focusout"]) element.addEventListener(event, leave);
  }

  /* A page inside a notebook's frame makes the frame as high as itself. */
  function fitFrame() {
    let frame = null;
    try { frame = window.frameElement; } catch { return; }
    if (!frame || !frame.hasAttribute("srcdoc")) return;
    new ResizeObserver(() => { frame.style.height = `${document.documentElement.offsetHeight + 4}px`; })
      .observe(document.documentElement);
  }

  document.addEventListener("DOMContentLoaded", () => { enhance(document); fitFrame(); });
  return {
    component(name, start) { components[name] = start; },
    enhance, node, number, choice, action, copy, download, tip, pointed,
  };
})();
