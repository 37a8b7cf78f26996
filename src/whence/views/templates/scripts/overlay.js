/* Scores over pictures: how dense the layers lie, from which strength on they show, the photo alone, and what a patch
   scored. A layer's own opacity is the strength of a score, so weak scores are left out by their opacity. */
whence.component("overlay", root => {
  const full = Number(root.dataset.full);
  const layers = [...root.querySelectorAll(".layer")];

  /* The layer without scores below a share of the strongest; it is drawn once it is asked for. */
  function drawn(image) {
    const canvas = whence.node("canvas", {class: "layer", "aria-hidden": "true"});
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const pen = canvas.getContext("2d", {willReadFrequently: true});
    pen.drawImage(image, 0, 0);
    const whole = pen.getImageData(0, 0, canvas.width, canvas.height);
    image.replaceWith(canvas);
    return least => {
      const left = new ImageData(new Uint8ClampedArray(whole.data), canvas.width);
      for (let at = 3; at < left.data.length; at += 4) if (left.data[at] < least) left.data[at] = 0;
      pen.putImageData(left, 0, 0);
    };
  }

  let drawers = null;
  async function showFrom(percent) {
    if (!drawers && percent === 0) return;
    drawers ??= Promise.all(layers.map(async image => { await image.decode(); return drawn(image); }));
    for (const draw of await drawers) draw(percent / 100 * full);
  }

  function slider(label, value, told, changed) {
    const output = whence.node("output", {}, told(value));
    const input = whence.node("input", {type: "range", min: 0, max: 100, step: 5, value, "aria-label": label});
    input.addEventListener("input", () => {
      output.textContent = told(Number(input.value));
      input.setAttribute("aria-valuetext", output.textContent);
      changed(Number(input.value));
    });
    input.setAttribute("aria-valuetext", output.textContent);
    return whence.node("label", {}, label, input, output);
  }

  const alone = whence.node("button", {type: "button", class: "action", "aria-pressed": "false"}, "photo alone");
  alone.addEventListener("click", () => {
    const pressed = alone.getAttribute("aria-pressed") !== "true";
    alone.setAttribute("aria-pressed", String(pressed));
    root.classList.toggle("alone", pressed);
  });
  if (layers.length) {
    root.prepend(whence.node("div", {class: "tools"},
      slider("opacity", 100, value => `${value} %`, value => root.style.setProperty("--opacity", value / 100)),
      slider("show scores from", 0, value => value ? `${value} % of the strongest` : "all", showFrom), alone));
  }
  for (const cells of root.querySelectorAll(".cells")) tellPatches(cells);

  /* Patches tell their score, its rank by size and its share of all, when pointed at or walked to with arrow keys. */
  function tellPatches(cells) {
    const patches = [...cells.children], columns = Number(cells.dataset.columns);
    const told = patches.map(patch => {
      const cut = patch.title.lastIndexOf(": ");
      return [patch.title.slice(0, cut), patch.title.slice(cut + 2)];
    });
    const sizes = told.map(([, score]) => Math.abs(Number(score)));
    const known = sizes.filter(Number.isFinite);
    const sum = known.reduce((total, size) => total + size, 0);
    function lines(at) {
      const [name, score] = told[at];
      if (!Number.isFinite(sizes[at])) return [name, `score ${score}: not finite`];
      const rank = 1 + known.filter(size => size > sizes[at]).length;
      const share = sum > 0 ? [`${(100 * sizes[at] / sum).toPrecision(2)} % of all sizes on the picture`] : [];
      return [name, `score ${score}`, `rank ${rank} of ${known.length} by size`, ...share];
    }
    let current = sizes.indexOf(Math.max(...known));
    cells.setAttribute("role", "group");
    cells.setAttribute("aria-label", "patches; arrow keys walk over them");
    patches.forEach((patch, at) => {
      patch.removeAttribute("title");
      patch.setAttribute("role", "img");
      patch.setAttribute("aria-label", told[at].join(": "));
      patch.tabIndex = at === Math.max(0, current) ? 0 : -1;
    });
    const tell = event => {
      const at = patches.indexOf(event.target);
      if (at >= 0) whence.tip.show(patches[at], lines(at));
    };
    whence.pointed(cells, tell, whence.tip.hide, "pointerout");
    cells.addEventListener("keydown", event => {
      const from = patches.indexOf(event.target), column = from % columns;
      const step = {ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step || from < 0) return;
      event.preventDefault();
      const to = from + step;
      if (to < 0 || to >= patches.length || (Math.abs(step) === 1 && column + step !== to % columns)) return;
      patches[from].tabIndex = -1;
      patches[to].tabIndex = 0;
      patches[to].focus();
    });
  }
});
