/* Attention as a matrix: a row is a query, a column a key. Pointing at a cell, or moving with the arrow keys, marks its
   row and column and tells its weight. */
whence.attention.views.matrix = state => {
  const {node} = whence, {rows, columns} = state.pair;
  const room = state.root.querySelector(".stage").clientWidth - 8, NAMES = 140, LEGIBLE = 10;
  const beside = Math.floor((room - NAMES) / columns.length), names = beside >= LEGIBLE;
  const wide = Math.max(3, Math.min(46, names ? beside : Math.floor(room / columns.length))), cell = Math.min(wide, names ? 24 : LEGIBLE);
  const numbers = names && wide >= 38;
  const width = (numbers ? wide : cell) * columns.length, height = cell * rows.length, across = width / columns.length;
  const canvas = node("canvas", {width: columns.length, height: rows.length, style: `width:${width}px;height:${height}px`});
  const band = () => node("div", {class: "band", hidden: true});
  const rowBand = band(), columnBand = band(), cursor = node("div", {class: "cursor", hidden: true});
  const written = node("div", {class: "written", "aria-hidden": "true"});
  const field = node("div", {
    class: "field", tabindex: "0", role: "application", style: `width:${width}px;height:${height}px`,
    "aria-label": `matrix of ${rows.length} queries and ${columns.length} keys: the arrow keys move from weight to weight`,
  }, canvas, written, rowBand, columnBand, cursor);
  const label = (side, at) => node("span", {
    class: state.special(side, at) ? "special" : null, dir: "auto",
    style: side ? `width:${across}px` : `height:${cell}px;line-height:${cell}px`,
  }, state.name(side, at));
  const tops = names ? columns.map((_, at) => label(1, at)) : [], lefts = names ? rows.map((_, at) => label(0, at)) : [];
  const element = node("div", {class: "matrix", style: `font-size:${Math.max(9, Math.min(13, cell - 2))}px`},
    node("div", {class: "top", "aria-hidden": "true"}, ...tops), node("div", {class: "left", "aria-hidden": "true"}, ...lefts), field);
  let at = null, map = null;

  function draw() {
    map = state.mean;
    const most = map.dense.reduce((largest, weight) => Math.max(largest, weight), 0) || 1;
    const picture = new ImageData(columns.length, rows.length), allowed = state.filter !== "all";
    map.dense.forEach((weight, n) => {
      const shown = !allowed || state.allowed(Math.floor(n / columns.length), n % columns.length);
      picture.data.set([38, 110, 214, shown ? Math.round(255 * (numbers ? 0.65 : 1) * weight / most) : 0], 4 * n);
    });
    canvas.getContext("2d").putImageData(picture, 0, 0);
    written.replaceChildren(...(numbers ? Array.from(map.dense, (weight, n) => node("i", {
      style: `left:${n % columns.length * across}px;top:${Math.floor(n / columns.length) * cell}px;width:${across}px;line-height:${cell}px`,
    }, weight >= 0.005 ? weight.toFixed(2) : "")) : []));
    if (at) mark(...at);
  }
  function mark(row, column) {
    at = [row, column];
    const boxes = [[rowBand, 0, row * cell, width, cell], [columnBand, column * across, 0, across, height],
      [cursor, column * across, row * cell, across, cell]];
    for (const [box, left, top, own, high] of boxes) {
      box.style.cssText = `left:${left}px;top:${top}px;width:${own}px;height:${high}px`;
      box.hidden = false;
    }
    const said = `weight ${state.weight(map.row(row)[column], map.whole)}`;
    whence.tip.show(cursor, [`${state.name(0, row)} → ${state.name(1, column)}`, said, `query ${row}, key ${column}`]);
    field.setAttribute("aria-description", `${state.name(0, row)} looks at ${state.name(1, column)}: ${said}`);
    lefts.forEach((one, n) => one.classList.toggle("chosen", n === row));
    tops.forEach((one, n) => one.classList.toggle("chosen", n === column));
  }
  function leave() {
    at = null;
    for (const box of [rowBand, columnBand, cursor]) box.hidden = true;
    for (const one of [...lefts, ...tops]) one.classList.remove("chosen");
    whence.tip.hide();
  }
  field.addEventListener("pointermove", event => {
    const from = field.getBoundingClientRect();
    const row = Math.floor((event.clientY - from.top) / cell), column = Math.floor((event.clientX - from.left) / across);
    if (row >= 0 && row < rows.length && column >= 0 && column < columns.length) mark(row, column);
  });
  field.addEventListener("pointerleave", leave);
  field.addEventListener("focus", () => { if (!at) mark(state.query ?? 0, 0); });
  field.addEventListener("blur", leave);
  field.addEventListener("keydown", event => {
    const step = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]}[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    mark(within((at?.[0] ?? 0) + step[0], rows.length), within((at?.[1] ?? 0) + step[1], columns.length));
    cursor.scrollIntoView({block: "nearest", inline: "nearest"});
  });

  /* Few cells become rectangles, many one picture inside the drawing. */
  function svg() {
    const side = 14, left = 120, top = 100, most = map.dense.reduce((a, b) => Math.max(a, b), 0) || 1, children = [];
    if (map.dense.length > 20000) {
      children.push(node("svg:image", {
        x: left, y: top, width: columns.length * side, height: rows.length * side, href: canvas.toDataURL(), preserveAspectRatio: "none",
        style: "image-rendering:pixelated",
      }));
    } else {
      map.dense.forEach((weight, n) => {
        const row = Math.floor(n / columns.length), column = n % columns.length;
        if (weight > 0 && state.allowed(row, column)) children.push(node("svg:rect", {
          x: left + column * side, y: top + row * side, width: side, height: side, fill: "rgb(38,110,214)",
          "fill-opacity": (weight / most).toFixed(3),
        }));
      });
    }
    const centre = "central";
    rows.forEach((_, n) => children.push(node("svg:text", {
      x: left - 6, y: top + (n + 0.5) * side, "text-anchor": "end", "dominant-baseline": centre,
    }, state.name(0, n))));
    columns.forEach((_, n) => children.push(node("svg:text", {
      "dominant-baseline": centre, transform: `translate(${left + (n + 0.5) * side} ${top - 6}) rotate(-90)`,
    }, state.name(1, n))));
    return {width: left + columns.length * side + 10, height: top + rows.length * side, children};
  }
  return {element, draw, svg};
};
