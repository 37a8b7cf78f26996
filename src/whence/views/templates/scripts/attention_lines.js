/* Attention as lines from queries (left) to keys (right): pointing at a token, or focusing it, leaves only its lines. */
whence.attention.views.lines = state => {
  const {node} = whence, LEVELS = 16, LONG = 40, GATHERED = 24;
  const {rows, columns} = state.pair, count = Math.max(rows.length, columns.length);
  const high = count > 128 ? 17 : count > 40 ? 20 : 24;
  const lists = ["queries", "keys"].map((label, side) => node("ol", {role: "listbox", "aria-label": label, "data-side": side},
    ...(side ? columns : rows).map((_, at) => node("li", {
      role: "option", "aria-selected": "false", tabindex: at ? "-1" : "0", dir: "auto", "data-at": at,
      class: state.special(side, at) ? "special" : null, style: `height:${high}px`,
    }, state.name(side, at)))));
  const drawn = node("svg:svg", {
    viewBox: `0 0 100 ${count * high}`, preserveAspectRatio: "none", "aria-hidden": "true", style: `height:${count * high}px`,
  });
  const gathered = node("ul", {class: "gathered", hidden: true});
  const element = node("div", {class: "lines", style: `font-size:${Math.min(15, high - 5)}px`}, lists[0], drawn, lists[1], gathered);
  let over = null; /* {side, at} of the token pointed at */

  const focus = () => over ?? (state.query === null ? null : {side: 0, at: state.query});
  /* All lines that are shown: [head, query, key, weight]. */
  function lines() {
    const only = focus(), found = [];
    for (const head of state.heads) {
      const map = state.map(head), first = only?.side === 0 ? only.at : 0;
      for (let row = first; row < (only?.side === 0 ? first + 1 : rows.length); row++)
        for (const key of state.shown(map, row).keys)
          if (only?.side !== 1 || key === only.at) found.push([head, row, key, map.row(row)[key]]);
    }
    return found;
  }
  /* In a long list the ends of a token's lines may be far away: the strongest of them are gathered beside the token. */
  function gather(shown, only) {
    const side = only && 1 - only.side, long = only && (side ? columns : rows).length > LONG;
    lists.forEach((list, at) => { list.style.visibility = long && at === side ? "hidden" : ""; });
    gathered.hidden = !long;
    if (!long) return shown;
    const weights = new Map();
    for (const line of shown) weights.set(line[side + 1], Math.max(line[3], weights.get(line[side + 1]) ?? 0));
    const ends = [...weights.keys()].sort((a, b) => weights.get(b) - weights.get(a)).slice(0, GATHERED).sort((a, b) => a - b);
    const first = Math.max(0, Math.min(only.at - Math.floor(ends.length / 2), count - ends.length));
    gathered.replaceChildren(...ends.map(end => node("li", {style: `height:${high}px`, dir: "auto"}, `${state.name(side, end)} (${end}) ${state.weight(weights.get(end))}`)));
    gathered.style.cssText = `top:${8 + first * high}px;${side ? "right" : "left"}:4px;text-align:${side ? "left" : "right"}`;
    const place = new Map(ends.map((end, at) => [end, first + at]));
    return shown.filter(line => place.has(line[side + 1])).map(([head, row, key, weight]) =>
      side ? [head, row, place.get(key), weight] : [head, place.get(row), key, weight]);
  }
  /* Lines of one head and about one strength are one path: thousands of them cost a few elements. */
  function draw() {
    const only = focus(), found = lines(), shown = gather(found, only), paths = new Map();
    const most = shown.reduce((largest, line) => Math.max(largest, line[3]), 0) || 1;
    for (const [head, row, key, weight] of shown) {
      const level = Math.min(LEVELS - 1, Math.floor(LEVELS * weight / most)), name = `${head}:${level}`;
      if (!paths.has(name)) paths.set(name, {head, level, steps: []});
      paths.get(name).steps.push(`M0 ${(row + 0.5) * high}L100 ${(key + 0.5) * high}`);
    }
    drawn.replaceChildren(...[...paths.values()].sort((a, b) => a.level - b.level).map(({head, level, steps}) => node("svg:path", {
      d: steps.join(""), stroke: state.colour(head), "stroke-opacity": (only ? Math.max(0.15, (level + 1) / LEVELS) : Math.max(0.04, ((level + 0.5) / LEVELS) ** 1.4)).toFixed(3),
      "stroke-width": only ? (1 + 4 * (level + 0.5) / LEVELS).toFixed(2) : 1 + (level + 0.5) / LEVELS,
      "vector-effect": "non-scaling-stroke", fill: "none",
    })));
    tint(gathered.hidden ? shown : [], only, most);
  }
  /* Names at the ends of the lines are coloured by weight. */
  function tint(shown, only, most) {
    const sizes = [new Map(), new Map()];
    if (only) for (const [, row, key, weight] of shown)
      for (const [side, at] of [[0, row], [1, key]])
        if (side !== only.side) sizes[side].set(at, Math.max(weight / most, sizes[side].get(at) ?? 0));
    lists.forEach((list, side) => [...list.children].forEach((item, at) => {
      const share = sizes[side].get(at) ?? 0, own = only?.side === side && only.at === at;
      item.style.background = share ? `rgba(38,110,214,${(0.05 + 0.5 * share).toFixed(2)})` : "";
      item.classList.toggle("chosen", own);
      item.setAttribute("aria-selected", String(side === 0 && at === state.query));
    }));
  }
  const place = item => ({side: +item.parentNode.dataset.side, at: +item.dataset.at});
  function point(event) {
    const item = event.target.closest?.("li");
    if (!item) return leave();
    over = place(item);
    draw();
    const told = state.told(over.side, over.at);
    whence.tip.show(item, gathered.hidden ? told : [told[0], ...told.slice(-1)]);
  }
  function leave() {
    if (!over) return;
    over = null;
    whence.tip.hide();
    draw();
  }
  whence.pointed(element, point, leave);
  element.addEventListener("click", event => {
    const item = event.target.closest("li");
    if (!item || place(item).side) return;
    state.query = state.query === place(item).at ? null : place(item).at;
    state.changed();
  });
  element.addEventListener("keydown", event => {
    const item = event.target.closest("li"), {side, at} = item ? place(item) : {};
    const target = {ArrowDown: [side, at + 1], ArrowUp: [side, at - 1], ArrowRight: [1, at], ArrowLeft: [0, at]}[event.key];
    if (!item) return;
    if (event.key === "Enter" || event.key === " ") item.click();
    else if (event.key === "Escape") { state.query = null; leave(); state.changed(); return; }
    else if (!target) return;
    event.preventDefault();
    if (!target) return;
    const list = lists[target[0]], next = list.children[Math.min(target[1], list.children.length - 1)];
    if (!next) return;
    item.tabIndex = -1;
    next.tabIndex = 0;
    list.style.visibility = "";
    next.focus();
  });

  /* The view as a drawing of its own: a line and a text each. */
  function svg() {
    const step = 18, left = 170, right = 430, shown = lines(), most = Math.max(...shown.map(line => line[3]), 1e-9);
    const text = (side, at) => node("svg:text", {
      x: side ? right + 8 : left - 8, y: (at + 0.5) * step, "text-anchor": side ? "start" : "end", "dominant-baseline": "central",
    }, state.name(side, at));
    return {width: 600, height: count * step, children: [
      ...shown.sort((a, b) => a[3] - b[3]).map(([head, row, key, weight]) => node("svg:line", {
        x1: left, y1: (row + 0.5) * step, x2: right, y2: (key + 0.5) * step, stroke: state.colour(head),
        "stroke-opacity": Math.max(0.02, weight / most).toFixed(3), "stroke-width": (0.6 + 1.4 * weight / most).toFixed(2),
      })),
      ...rows.map((_, at) => text(0, at)), ...columns.map((_, at) => text(1, at)),
    ]};
  }
  return {element, draw, svg};
};

/* A drawing that needs nothing else: white ground, a title, and what a view drew below it. */
whence.attention.drawing = ({width, height, children}, state) => {
  const {node} = whence, head = 28;
  const svg = node("svg:svg", {
    width, height: height + head + 8, viewBox: `0 0 ${width} ${height + head + 8}`,
    "font-family": "system-ui, sans-serif", "font-size": 12,
  }, node("svg:rect", {width: "100%", height: "100%", fill: "#fff"}),
  node("svg:text", {x: 8, y: 18, "font-weight": 600}, `${state.data.model}: ${state.title}`),
  node("svg:g", {transform: `translate(0 ${head})`}, ...children));
  return new XMLSerializer().serializeToString(svg);
};
