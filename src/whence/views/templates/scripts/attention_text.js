/* Attention over running text, for texts too long for lines: pointing at a query colours the keys that it looks at. */
whence.attention.views.text = state => {
  const {node} = whence, {rows, columns} = state.pair;
  const token = (side, at) => node("span", {
    role: "option", "aria-selected": "false", tabindex: at ? "-1" : "0", dir: "auto", "data-at": at,
    class: state.special(side, at) ? "special" : null,
  }, state.name(side, at));
  const queries = node("div", {role: "listbox", "aria-label": "queries", class: "flow"}, ...rows.map((_, at) => token(0, at)));
  const keys = state.same ? queries : node("div", {class: "flow"}, ...columns.map((_, at) => {
    const made = token(1, at);
    for (const name of ["role", "aria-selected", "tabindex"]) made.removeAttribute(name);
    return made;
  }));
  const caption = node("p", {class: "lead said"});
  const element = node("div", {class: "running"},
    node("p", {class: "lead"}, "Point at a token to see where it looks; a click keeps it."), queries, ...(state.same ? [] : [keys]), caption);
  let over = null;

  function draw() {
    const map = state.mean, query = over ?? state.query;
    const weights = query === null ? columns.map((_, key) => rows.reduce((sum, _, row) => sum + map.row(row)[key], 0) / rows.length)
      : columns.map((_, key) => state.allowed(query, key) ? map.row(query)[key] : 0);
    const most = Math.max(...weights) || 1;
    [...keys.children].forEach((item, key) => {
      item.style.background = weights[key] ? `rgba(38,110,214,${(0.65 * weights[key] / most).toFixed(3)})` : "";
    });
    [...queries.children].forEach((item, at) => {
      item.classList.toggle("chosen", at === query);
      item.setAttribute("aria-selected", String(at === state.query));
    });
    caption.textContent = query === null
      ? "Colour: the mean weight that a token is given by all queries."
      : `Colour: where ${state.name(0, query)} (${query}) looks; its largest weight is ${state.weight(most)}.`;
  }
  function point(event) {
    const item = event.target.closest?.("span");
    if (!item || item.parentNode !== queries) return leave();
    over = +item.dataset.at;
    draw();
    whence.tip.show(item, state.told(0, over, 4));
  }
  function leave() {
    if (over === null) return;
    over = null;
    whence.tip.hide();
    draw();
  }
  whence.pointed(element, point, leave);
  queries.addEventListener("click", event => {
    const item = event.target.closest("span");
    if (!item) return;
    state.query = state.query === +item.dataset.at ? null : +item.dataset.at;
    state.changed();
  });
  queries.addEventListener("keydown", event => {
    const item = event.target.closest("span"), step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); item.click(); }
    const next = step && queries.children[+item.dataset.at + step];
    if (!next) return;
    event.preventDefault();
    item.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  function svg() {
    const from = element.getBoundingClientRect();
    const children = [...element.querySelectorAll(".flow > span")].flatMap(item => {
      const box = item.getBoundingClientRect(), x = box.left - from.left + 8, y = box.top - from.top;
      const rect = {x, y, width: box.width, height: box.height, rx: 3, fill: item.style.backgroundColor || "none"};
      const text = {x: x + box.width / 2, y: y + box.height / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 15};
      return [node("svg:rect", rect), node("svg:text", text, item.textContent)];
    });
    return {width: Math.ceil(from.width) + 16, height: Math.ceil(from.height), children};
  }
  return {element, draw, svg};
};
