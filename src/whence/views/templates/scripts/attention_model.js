/* The thumbnails of all heads: a button over each, moved between with the arrow keys, opens the head. */
whence.attention.sheet = (sheet, pair, open) => {
  const buttons = [];
  const about = (layer, head) => {
    const named = ["special tokens", "the first key", "the query itself", "the one before"];
    return pair.maps[layer][head].a.map((share, at) => [share, named[at]]).filter(([share]) => share !== null)
      .map(([share, name]) => `${Math.round(100 * share)} % on ${name}`);
  };
  for (let layer = 0; layer < pair.layers; layer++) {
    for (let head = 0; head < pair.heads; head++) {
      const button = whence.node("button", {
        type: "button", "aria-label": `layer ${layer}, head ${head}`, "aria-pressed": "false", tabindex: "-1",
        "data-layer": layer, "data-head": head, style: `grid-area:${layer + 2}/${head + 2}`,
        onclick: () => open(layer, head),
        onpointerenter: () => told(), onfocus: () => told(), onpointerleave: whence.tip.hide, onblur: whence.tip.hide,
      });
      const told = () => whence.tip.show(button, [`layer ${layer}, head ${head}`, ...about(layer, head)]);
      buttons.push(button);
    }
  }
  buttons[0].tabIndex = 0;
  sheet.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: pair.heads, ArrowUp: -pair.heads}[event.key];
    const from = buttons.indexOf(event.target), to = from + step;
    if (!step || from < 0 || !buttons[to]) return;
    event.preventDefault();
    buttons[from].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  });
  sheet.append(...buttons);
};
