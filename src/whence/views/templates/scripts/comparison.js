/* Methods over one text: pointing at a token tells what every method gives it; the table takes the texts' place on demand. */
whence.component("comparison", root => {
  const {choice, action, copy, node, tip} = whence;
  const blocks = [...root.querySelectorAll(".block")].map(element => {
    const lines = [...element.querySelectorAll(".texts > .row")].map(row => [...row.querySelectorAll(".line > b")]);
    const rows = [...element.querySelectorAll("tbody tr:not(.foot)")];
    const methods = [...element.querySelectorAll("thead th")].slice(1).map(head => head.textContent);
    const shares = lines.map(line => line.map(token => Number(token.style.getPropertyValue("--s"))));
    return {element, lines, rows, methods, shares, special: rows.map(row => row.cells[0].classList.contains("special"))};
  });
  if (!blocks.length) return;
  const state = {table: false, special: true, block: 0};

  function draw() {
    blocks.forEach((block, at) => {
      block.element.hidden = at !== state.block;
      if (block.element.hidden) return;
      block.element.querySelector(".texts").hidden = state.table;
      const details = block.element.querySelector("details");
      details.hidden = !state.table;
      details.open = state.table;
      details.querySelector("summary").hidden = true;
      block.rows.forEach((row, i) => { row.hidden = block.special[i] && !state.special; });
      block.lines.forEach((line, m) => {
        const own = block.shares[m], kept = own.filter((_, i) => state.special || !block.special[i]);
        const largest = state.special ? 1 : Math.max(...kept.map(Math.abs)) || 1;
        line.forEach((token, i) => {
          token.hidden = block.special[i] && !state.special;
          token.style.setProperty("--s", own[i] / largest);
        });
      });
      block.walk = whence.walk(() => block.lines.flat());
    });
  }

  let lit = [];
  function dark() {
    for (const token of lit) token.classList.remove("lit");
    lit = [];
    tip.hide();
  }
  function tell(event) {
    dark();
    const token = event.target.closest(".line > b"), block = blocks[state.block];
    const line = token && block.lines.find(own => own.includes(token));
    if (!line) return;
    const at = line.indexOf(token), row = block.rows[at];
    lit = block.lines.map(own => own[at]);
    for (const one of lit) one.classList.add("lit");
    tip.show(token, [row.cells[0].textContent, ...block.methods.map((method, m) => `${method}  ${row.cells[m + 1].textContent}`)]);
  }
  function asText() {
    const block = blocks[state.block], rows = block.rows.filter(row => !row.hidden);
    return [["token", ...block.methods], ...rows.map(row => [...row.cells].map(cell => cell.textContent))]
      .map(row => row.join("\t")).join("\n") + "\n";
  }

  const set = name => value => { state[name] = value; dark(); draw(); };
  const tools = node("div", {class: "tools"});
  if (blocks.length > 1) {
    const select = node("select", {onchange: () => set("block")(select.selectedIndex)},
      ...blocks.map(block => node("option", {}, block.element.dataset.name)));
    tools.append(node("label", {}, "produced token", select));
  }
  tools.append(choice("view", [[false, "coloured texts"], [true, "table"]], false, set("table")));
  if (blocks.some(block => block.special.some(Boolean) && !block.special.every(Boolean)))
    tools.append(choice("special tokens", [[true, "all tokens"], [false, "without special"]], true, set("special")));
  tools.append(action("copy", "copied", () => copy(asText())));
  root.prepend(tools);
  whence.pointed(root, tell, dark);
  root.addEventListener("keydown", event => blocks[state.block].walk(event));
  draw();
});
