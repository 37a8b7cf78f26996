/* Tokens with scores. Arrow keys walk over tokens with a single tab stop; `whence.walk` serves all pages of texts. */
whence.walk = (items, chosen) => {
  const open = () => items().filter(item => item.offsetParent !== null);
  for (const item of items()) item.tabIndex = -1;
  const first = open()[0];
  if (first) first.tabIndex = 0;
  function beside(all, from, down) {
    const own = from.getBoundingClientRect(), middle = own.left + own.width / 2;
    let best = null, least = Infinity;
    for (const item of all) {
      const at = item.getBoundingClientRect();
      if (down ? at.top < own.bottom - 2 : at.bottom > own.top + 2) continue;
      const far = 1000 * Math.abs(at.top - own.top) + Math.abs(at.left + at.width / 2 - middle);
      if (far < least) [best, least] = [item, far];
    }
    return best;
  }
  return event => {
    const all = open(), from = event.target.closest("[tabindex]"), at = all.indexOf(from);
    if (at < 0) return;
    const back = getComputedStyle(from).direction === "rtl" ? 1 : -1;
    const to = {
      ArrowLeft: () => all[at + back], ArrowRight: () => all[at - back], Home: () => all[0], End: () => all.at(-1),
      ArrowUp: () => beside(all, from, false), ArrowDown: () => beside(all, from, true),
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    for (const item of items()) item.tabIndex = item === to ? 0 : -1;
    to.focus();
    chosen?.(to);
  };
};

whence.component("tokens", root => {
  const {choice, action, copy, node, tip} = whence;
  const number = (value, sign) => whence.number(value, sign && value !== 0).replace("−", "-"); // as the scores of the page are written
  const signed = "signed" in root.dataset;
  const levels = [...root.querySelectorAll(".level")].map(element => ({
    element, lists: [...element.querySelectorAll(".tokens")].map(list => ({list, inOrder: [...list.childNodes]})),
    ends: [...element.querySelectorAll(".legend span")],
    tokens: [...element.querySelectorAll(".tokens > span")].map(span => {
      const raw = span.title.replace("inf", "Infinity"), value = raw === "nan" ? NaN : Number(raw);
      span.removeAttribute("title");
      const [name, written] = span.children, forms = [name.textContent, name.dataset.as ?? name.textContent];
      if (element.classList.contains("quiet")) forms.reverse();
      return {span, label: name, name: forms[0], asWritten: forms[1], written, score: written.textContent, value,
        special: span.classList.contains("special"), sink: span.classList.contains("sink")};
    }),
  }));
  const state = {level: 0, special: true, numbers: levels[0].element.classList.contains("quiet") ? "" : "score", ranked: false};
  const size = token => Number.isFinite(token.value) ? Math.abs(token.value) : 0;
  const percent = share => share > 0 && share < 5e-4 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;

  /* Ranks, shares and colours count what is shown, so that a strong special token can be taken away. An attention sink has
     a rank and a share, and no colour. */
  function measure() {
    const own = levels[state.level];
    own.shown = own.tokens.filter(token => state.special || !token.special);
    own.largest = Math.max(...own.shown.filter(token => !token.sink).map(size), 0) || Math.max(...own.shown.map(size), 0);
    own.total = own.shown.reduce((sum, token) => sum + size(token), 0);
    [...own.shown].sort((a, b) => size(b) - size(a)).forEach((token, i) => { token.rank = i + 1; });
  }
  const texts = {
    score: token => token.score,
    largest: (token, own) => Number.isFinite(token.value) && own.largest ? number(+(token.value / own.largest).toFixed(2), signed) : token.score,
    share: (token, own) => Number.isFinite(token.value) && own.total ? percent(size(token) / own.total) : token.score,
  };

  function draw() {
    measure();
    const own = levels[state.level];
    levels.forEach((level, i) => { level.element.hidden = i !== state.level; });
    own.element.classList.toggle("quiet", !state.numbers);
    own.element.classList.toggle("ranked", state.ranked);
    own.element.classList.toggle("both", own.shown.some(token => token.value < 0));
    own.ends.forEach((end, i) => { end.textContent = i || signed ? number((i || -1) * own.largest, signed) : "0"; });
    for (const token of own.tokens) {
      token.span.hidden = token.special && !state.special;
      token.span.style.setProperty("--s", own.largest && Number.isFinite(token.value) && !token.sink ? token.value / own.largest : 0);
      token.label.textContent = state.numbers || state.ranked ? token.name : token.asWritten;
      token.written.textContent = texts[state.numbers || "score"](token, own);
    }
    for (const {list, inOrder} of own.lists) {
      const rank = new Map(own.shown.map(token => [token.span, token.rank]));
      const ranked = inOrder.filter(one => rank.has(one)).sort((a, b) => rank.get(a) - rank.get(b));
      list.append(...(state.ranked ? [...ranked, ...inOrder.filter(one => !rank.has(one))] : inOrder));
    }
    own.walk = whence.walk(() => [...own.element.querySelectorAll(".tokens > span")]);
  }

  function tell(event) {
    const own = levels[state.level], token = own.tokens.find(one => one.span === event.target.closest(".tokens > span"));
    if (!token || token.span.hidden) return;
    const where = state.special ? "" : " of what is shown";
    const says = !signed || !token.value ? "" : token.value > 0 ? ", speaks for" : ", speaks against";
    tip.show(token.span, [token.name, `score ${number(token.value, signed)}${says}`, `rank ${token.rank} of ${own.shown.length}`,
      own.total && Number.isFinite(token.value) ? `${percent(size(token) / own.total)} of the sum of |scores|${where}` : "no share"]);
  }

  function asText() {
    const own = levels[state.level];
    const rows = own.lists.flatMap(({list}) => [...list.children].map(span => own.shown.find(one => one.span === span)));
    return ["token\tscore\trank\tshare", ...rows.filter(Boolean).map(one => [one.name, one.value, one.rank,
      own.total ? (size(one) / own.total).toPrecision(4) : ""].join("\t"))].join("\n") + "\n";
  }

  const set = name => value => { state[name] = value; tip.hide(); draw(); };
  const tools = node("div", {class: "tools"});
  if (levels.length > 1)
    tools.append(choice("grouping", levels.map((level, i) => [i, level.element.dataset.level]), 0, set("level")));
  tools.append(choice("order", [[false, "as text"], [true, "ranked"]], false, set("ranked")));
  tools.append(choice("numbers", [["", "no numbers"], ["score", "scores"], ["largest", "of largest"], ["share", "of sum"]],
    state.numbers, set("numbers")));
  if (levels[0].tokens.some(token => token.special) && levels[0].tokens.some(token => !token.special))
    tools.append(choice("special tokens", [[true, "all tokens"], [false, "without special"]], true, set("special")));
  tools.append(action("copy", "copied", () => copy(asText())));
  root.prepend(tools);
  whence.pointed(root, tell, tip.hide, "pointerout");
  root.addEventListener("keydown", event => levels[state.level].walk(event));
  draw();
});
