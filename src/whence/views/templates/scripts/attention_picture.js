/* Attention over a picture: pointing at a patch, or moving with the arrow keys, shows where it looks. */
whence.attention.views.picture = state => {
  const {node} = whence, {grid: [down, across], patches, place, heat} = state.data.picture;
  const source = state.root.querySelector(".stage").dataset.photo;
  const rowOf = patches.map(feature => state.pair.rows.indexOf(feature));
  const columnOf = patches.map(feature => state.pair.columns.indexOf(feature));
  const others = state.pair.rows.map((_, row) => row).filter(row => !rowOf.includes(row));
  const asks = rowOf[0] >= 0; /* patches are queries too */
  const where = `left:${place[0]}%;top:${place[1]}%;width:${place[2]}%;height:${place[3]}%`;
  const canvas = node("canvas", {width: across, height: down, style: where});
  const frames = [0, 1].map(() => node("i", {class: "frame", hidden: true}));
  const field = over => node("div", {
    class: "patches", style: where, ...(over && asks ? {tabindex: "0", role: "application", "aria-label": "patches: the arrow keys move from patch to patch"} : {}),
  }, frames[over]);
  const fields = [field(0), field(1)];
  const figure = (words, ...over) => node("figure", {}, node("div", {}, node("img", {src: source, alt: words}), ...over), node("figcaption", {}, words));
  const said = node("figcaption", {"aria-live": "polite"}), bar = node("i");
  const shown = figure("attention over the picture", canvas, fields[1]);
  shown.lastChild.replaceWith(said);
  const chips = node("div", {class: "chips", role: "group", "aria-label": "other queries"}, node("span", {}, "Looks from"),
    ...others.map(row => node("button", {
      type: "button", "data-row": row, onclick: () => keep(row), onpointerenter: () => look(row), onpointerleave: () => look(null),
    }, state.name(0, row))));
  const element = node("div", {class: "over"}, ...(others.length ? [chips] : []),
    node("div", {class: "pictures"}, figure("the picture", fields[0]), shown));
  let over = null;

  const colour = share => {
    const at = share * (heat.length - 1), low = Math.min(heat.length - 2, Math.floor(at));
    return heat[low].map((from, n) => Math.round(from + (heat[low + 1][n] - from) * (at - low)));
  };
  bar.style.background = `linear-gradient(90deg,${heat.map((rgb, n) => `rgba(${rgb},${0.85 * n / (heat.length - 1)})`).join()})`;
  const query = () => over ?? state.query;
  function weights() {
    const map = state.mean, row = query(), count = state.pair.rows.length;
    return columnOf.map(key => row !== null ? map.row(row)[key]
      : state.pair.rows.reduce((sum, _, one) => sum + map.row(one)[key], 0) / count);
  }
  function draw() {
    const own = weights(), most = Math.max(...own) || 1, row = query(), patch = row === null ? -1 : rowOf.indexOf(row);
    const picture = new ImageData(across, down);
    own.forEach((weight, n) => picture.data.set([...colour(weight / most), Math.round(217 * weight / most)], 4 * n));
    canvas.getContext("2d").putImageData(picture, 0, 0);
    for (const frame of frames) {
      frame.hidden = patch < 0;
      frame.style.cssText = `left:${100 * (patch % across) / across}%;top:${100 * Math.floor(patch / across) / down}%;width:${100 / across}%;height:${100 / down}%`;
    }
    const held = own.reduce((sum, weight) => sum + weight, 0), from = row === null ? "all queries, on average" : state.name(0, row);
    said.replaceChildren(`${from}: ${state.percent(held)} of the weight on the picture`,
      node("div", {class: "spectrum"}, bar, node("span", {}, "0"), node("span", {}, state.weight(most))));
    for (const chip of chips.querySelectorAll("button")) chip.setAttribute("aria-pressed", String(+chip.dataset.row === row));
  }
  function look(row) {
    over = row;
    draw();
  }
  function keep(row) {
    state.query = row;
    over = null;
    state.changed();
  }
  function told(patch) {
    look(rowOf[patch]);
    const own = weights(), best = [...own.keys()].sort((a, b) => own[b] - own[a]).slice(0, 4);
    const elsewhere = others.slice(0, 3).map(row => state.pair.columns.indexOf(state.pair.rows[row])).filter(key => key >= 0);
    whence.tip.show(frames[1], [`${state.name(0, rowOf[patch])} looks at`,
      ...best.map(n => `${state.weight(own[n])}  ${state.data.names[patches[n]]}`),
      ...elsewhere.map(key => `${state.weight(state.mean.row(rowOf[patch])[key])}  ${state.name(1, key)}`)]);
  }
  function at(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const part = (place, length, count) => Math.min(count - 1, Math.max(0, Math.floor(count * place / length)));
    return part(event.clientY - box.top, box.height, down) * across + part(event.clientX - box.left, box.width, across);
  }
  function leave() {
    if (over === null) return;
    whence.tip.hide();
    look(null);
  }
  if (asks) for (const one of fields) {
    one.addEventListener("pointermove", event => { if (rowOf[at(event)] !== over) told(at(event)); });
    one.addEventListener("pointerleave", leave);
    one.addEventListener("click", event => keep(rowOf[at(event)]));
  }
  if (asks) {
    fields[1].addEventListener("focus", () => { if (over === null) told(Math.max(0, rowOf.indexOf(state.query))); });
    fields[1].addEventListener("blur", leave);
    fields[1].addEventListener("keydown", event => {
      const now = Math.max(0, rowOf.indexOf(query()));
      const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across}[event.key];
      if (event.key === "Enter") keep(rowOf[now]);
      const sideways = Math.abs(step) === 1 && Math.floor((now + step) / across) !== Math.floor(now / across);
      if (!step) return;
      event.preventDefault();
      if (rowOf[now + step] !== undefined && !sideways) told(now + step);
    });
  }

  function svg() {
    const image = element.querySelector("img"), width = 480, height = Math.round(width * image.naturalHeight / image.naturalWidth);
    const own = weights(), most = Math.max(...own) || 1;
    const [left, top, wide, high] = place.map((part, n) => part / 100 * (n % 2 ? height : width));
    const cell = n => ({x: left + n % across * wide / across, y: top + Math.floor(n / across) * high / down, width: wide / across, height: high / down});
    const row = query(), patch = row === null ? -1 : rowOf.indexOf(row);
    return {width, height, children: [
      node("svg:image", {href: source, width, height}),
      ...own.map((weight, n) => node("svg:rect", {...cell(n), fill: `rgb(${colour(weight / most)})`, "fill-opacity": (0.85 * weight / most).toFixed(3)})),
      ...(patch < 0 ? [] : [node("svg:rect", {...cell(patch), fill: "none", stroke: "#fff", "stroke-width": 2})]),
      node("svg:text", {x: 8, y: height - 8, fill: "#fff", stroke: "#000", "stroke-width": 3, "paint-order": "stroke"},
        row === null ? "mean of all queries" : `query: ${state.name(0, row)}`),
    ]};
  }
  return {element, draw, svg};
};
