/* Generated text: choosing a produced token colours what it came from, in the source and in what was produced before. */
whence.component("generated", root => {
  const {node, tip} = whence;
  const tokens = [...root.querySelectorAll(".tokens > span")], table = root.querySelector("table.sources");
  const columns = [...table.querySelectorAll("thead .column")];
  const rows = [...table.tBodies[0].rows].map(row => ({row, head: row.cells[0], cells: [...row.cells].slice(1, 1 + tokens.length)}));
  let produced = tokens.filter(token => "row" in token.dataset);
  const several = produced.length < rows.length; // units, as sentences, hold several produced tokens: those get a line
  if (several) {
    for (const token of produced) delete token.dataset.row;
    produced = rows.map((one, i) => node("span", {"data-row": i}, node("b", {dir: "auto"}, one.head.textContent)));
  }
  const said = node("p", {class: "said", role: "status"});
  const share = cell => Number(cell.style.getPropertyValue("--s"));
  let chosen = -1;

  function light(column, row) {
    columns.forEach((one, i) => one.classList.toggle("lit", i === column));
    rows.forEach(one => one.head.classList.toggle("lit", column >= 0 && one === row));
  }

  function choose(at) {
    chosen = at;
    light(-1);
    tip.hide();
    const own = rows[at], largest = Math.max(...own.cells.map(cell => Math.abs(share(cell)))) || 1;
    tokens.forEach((token, i) => {
      const cell = own.cells[i], unseen = cell.classList.contains("hidden");
      token.classList.toggle("unseen", unseen);
      token.style.setProperty("--s", unseen ? 0 : share(cell) / largest);
    });
    for (const token of produced) token.setAttribute("aria-pressed", String(token === holder(at)));
    rows.forEach((one, i) => one.row.classList.toggle("chosen", i === at));
    said.textContent = `${own.head.textContent} is token ${at + 1} of ${rows.length}, coloured on its own scale. ${own.row.dataset.reading}`;
  }
  const holder = at => produced.find((token, i) => Number(token.dataset.row) <= at && !(Number(produced[i + 1]?.dataset.row) <= at));

  for (const token of produced) token.setAttribute("role", "button");
  const walk = whence.walk(() => produced, token => choose(Number(token.dataset.row)));
  root.addEventListener("keydown", event => {
    const token = event.target.closest("[data-row]");
    if (token && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      choose(Number(token.dataset.row));
    } else if (token) walk(event);
  });
  root.addEventListener("click", event => {
    const token = event.target.closest("[data-row]"), row = event.target.closest("tbody tr");
    if (token) choose(Number(token.dataset.row));
    else if (row) choose(rows.findIndex(one => one.row === row));
  });

  function point(event) {
    const cell = event.target.closest("tbody td"), token = event.target.closest(".tokens > span");
    let at = -1, own = rows[chosen];
    if (cell) {
      own = rows.find(one => one.row === cell.parentElement);
      at = own.cells.indexOf(cell);
    } else if (token) at = tokens.indexOf(token);
    light(at, own);
    if (at < 0 || !own) return tip.hide();
    const found = own.cells[at], hidden = found.classList.contains("hidden");
    tip.show(cell ?? token, [`${tokens[at].firstChild.textContent} → ${own.head.textContent}`,
      hidden ? "could not be seen" : `score ${found.textContent}`]);
  }
  whence.pointed(root, point, tip.hide);
  root.prepend(node("p", {class: "hint"}, "Choose a produced token (underlined) by click or arrow keys to see what it came from."),
    ...several ? [node("div", {class: "tokens"}, ...produced)] : [], said);
  root.classList.add("choosing");
  if (rows.length) choose(0);
});
