/* Attention maps: which streams, layer and heads are looked at, and in which view. A view is a function in
   whence.attention.views: given the state it returns {element, draw, svg}. */
whence.attention = {views: {}};

/* The weights of one map: `dense` (query x key; 0 where the page does not hold a weight), and the share of every query's
   weight that the page holds. */
whence.attention.decoded = (record, rows, columns, top) => {
  const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const codes = bytes(record.w), sizes = top > 255 ? new Uint16Array(codes.buffer) : codes;
  const weights = Float32Array.from(sizes, code => record.m * (code / top) ** 2);
  let dense = weights, share = null;
  if (record.k) {
    const keys = new Uint16Array(bytes(record.k).buffer), kept = keys.length / rows;
    dense = new Float32Array(rows * columns);
    keys.forEach((key, at) => { dense[Math.floor(at / kept) * columns + key] = weights[at]; });
    share = Float32Array.from(bytes(record.s), code => code / 255);
  }
  return {
    ...whence.attention.ordered(dense, columns), about: record.a, whole: !share, share: row => share ? share[row] : 1,
  };
};

/* Weights by query: all of a row, and its keys with the largest weight first. */
whence.attention.ordered = (dense, columns) => {
  const orders = new Map(), row = at => dense.subarray(at * columns, (at + 1) * columns);
  function order(at) {
    if (!orders.has(at)) {
      const own = row(at);
      orders.set(at, [...own.keys()].filter(key => own[key] > 0).sort((a, b) => own[b] - own[a]));
    }
    return orders.get(at);
  }
  return {dense, row, order};
};

/* What all views look at: the chosen maps, which of their weights are shown, and what is said of them. */
whence.attention.state = (data, root) => {
  const decoded = new Map();
  let means = [];
  const state = {
    data, root, pairAt: 0, layer: data.layer, heads: data.heads, query: data.query, filter: "all", limit: Infinity, lines: false,
    get pair() { return data.pairs[state.pairAt]; },
    name: (side, at) => data.names[(side ? state.pair.columns : state.pair.rows)[at]],
    special: (side, at) => data.special[(side ? state.pair.columns : state.pair.rows)[at]],
    group: (side, at) => data.group[(side ? state.pair.columns : state.pair.rows)[at]],
    get same() { return String(state.pair.rows) === String(state.pair.columns); },
    held: layer => layer in state.pair.maps,
    /* The map of a head of the chosen layer; null is the mean of heads. */
    map(head) {
      const {pair, layer} = state, key = `${state.pairAt}:${layer}:${head}`;
      if (!decoded.has(key)) {
        const record = pair.maps[layer][head ?? pair.heads];
        decoded.set(key, whence.attention.decoded(record, pair.rows.length, pair.columns.length, data.top));
      }
      return decoded.get(key);
    },
    /* The mean of the chosen maps, kept until others are chosen. */
    get mean() {
      const key = `${state.pairAt}:${state.layer}:${state.heads}`;
      if (means[0] !== key) means = [key, state.meanOf(state.heads.map(state.map))];
      return means[1];
    },
    meanOf(maps) {
      if (maps.length === 1) return maps[0];
      const dense = new Float32Array(maps[0].dense.length), columns = state.pair.columns.length;
      for (const map of maps) map.dense.forEach((weight, at) => { dense[at] += weight / maps.length; });
      return {
        ...whence.attention.ordered(dense, columns), whole: maps.every(map => map.whole),
        share: row => maps.reduce((sum, map) => sum + map.share(row), 0) / maps.length,
      };
    },
    allowed(row, key) {
      const from = state.group(0, row), to = state.group(1, key);
      if (state.filter === "all") return true;
      if (state.filter === "within") return from === to;
      return state.filter === "between" ? from !== to : state.filter === `${from}:${to}`;
    },
    /* The keys of a query whose weights are shown, and the share of the query's weight that they carry. */
    shown(map, row) {
      const own = map.row(row), order = map.order(row);
      const keys = order.filter(key => state.allowed(row, key)).slice(0, state.lines ? state.limit : Infinity);
      const sum = list => list.reduce((total, key) => total + own[key], 0);
      return {keys, share: order.length ? map.share(row) * sum(keys) / sum(order) : 0};
    },
    weight(value, whole = true) {
      const digits = data.top > 255 ? 3 : 2;
      if (!value && !whole) return "not among the largest";
      return value && value < 0.5 * 10 ** -digits ? `<${10 ** -digits}` : value.toFixed(digits);
    },
    headName: head => head === null ? `mean of ${state.pair.heads} heads` : `head ${head}`,
    get title() {
      const {heads} = state;
      const named = heads.length === 1 ? state.headName(heads[0])
        : heads.length === state.pair.heads ? `all ${heads.length} heads` : `heads ${heads.join(", ")}`;
      const streams = data.pairs.length > 1 ? `, ${state.pair.streams.join(" looks at ")}` : "";
      return `layer ${state.layer}, ${named}${streams}`;
    },
    colour: head => head === null ? "rgb(38,110,214)" : `hsl(${(215 + head * 137.5) % 360} 70% 48%)`,
    /* Lines of a tip: a token, and the strongest weights from it or towards it. */
    told(side, at, most = 8) {
      const map = state.mean, {rows, columns} = state.pair;
      const weights = side ? rows.map((_, row) => state.allowed(row, at) ? map.row(row)[at] : 0)
        : columns.map((_, key) => state.allowed(at, key) ? map.row(at)[key] : 0);
      const best = [...weights.keys()].filter(n => weights[n] > 0).sort((a, b) => weights[b] - weights[a]);
      const lines = best.slice(0, most).map(n => `${state.weight(weights[n])}  ${state.name(1 - side, n)} (${n})`);
      const rest = best.length > most ? [`and ${best.length - most} more`] : [];
      const share = side ? [] : [`shown: ${state.percent(state.shown(map, at).share)} of its weight`];
      const mean = state.heads.length > 1 ? `, mean of ${state.heads.length} heads` : "";
      return [`${state.name(side, at)} (${at}) ${side ? "is looked at by" : "looks at"}${mean}`, ...lines, ...rest, ...share];
    },
    percent: share => `${Math.round(100 * share)} %`,
  };
  return state;
};

/* The sentence about what is shown: which share of the weight, and how much of it lies on special tokens. */
whence.attention.reading = state => {
  const maps = state.heads.map(state.map), {percent, lines} = state, said = [];
  const of = at => {
    const known = maps.map(map => map.about[at]).filter(share => share !== null);
    return known.length ? known.reduce((sum, share) => sum + share, 0) / known.length : null;
  };
  if (lines || maps.some(map => !map.whole)) {
    const found = maps.flatMap(map => state.pair.rows.map((_, row) => state.shown(map, row).share));
    const mean = found.reduce((sum, share) => sum + share, 0) / found.length, least = Math.min(...found);
    const kept = lines && state.limit < Infinity ? `the ${state.limit} largest of every query`
      : maps.some(map => !map.whole) ? `the ${state.data.kept} largest of every query` : "all of them";
    const at = found.length > 1 && least < 0.995 ? `, at least ${percent(Math.floor(100 * least) / 100)} of each query's` : "";
    const which = state.filter === "all" ? kept : `${kept}, of the chosen parts`;
    said.push(`${lines ? "Lines" : "Cells"} carry ${percent(mean)} of the weight (${which}${at}).`);
  }
  const places = [["special tokens", 0], ["the first key", 1], ["the query itself", 2], ["the one before", 3]];
  const named = places.filter(([, at]) => of(at) !== null && !(at && of(at) < 0.005) && (at !== 1 || of(1) !== of(0))).map(([name, at]) => `${percent(of(at))} on ${name}`);
  if (named.length) said.push(`Of all weight, ${named.join(", ")}.`);
  return said.join(" ") || "There is no weight to show.";
};

whence.component("attention", root => {
  const {node, choice, action} = whence, {views, state: stateOf, reading} = whence.attention;
  const data = JSON.parse(root.dataset.maps), state = stateOf(data, root);
  const stage = root.querySelector(".stage"), said = root.querySelector(".reading");
  const title = node("h2", {tabindex: "-1"}), tools = node("div", {class: "tools"});
  const sheets = [...root.querySelectorAll(".all-heads")];
  let name = data.view, current = null;

  function names() {
    if (!data.picture) return ["lines", "text", "matrix"];
    const keys = new Set(state.pair.columns);
    return data.picture.patches.every(patch => keys.has(patch)) ? ["picture", "lines", "matrix"] : ["lines", "matrix"];
  }
  function defaults() {
    state.limit = state.pair.columns.length > 16 ? 10 : Infinity;
    if (!names().includes(name)) [name] = names();
  }
  function draw() {
    current.draw();
    title.textContent = state.title[0].toUpperCase() + state.title.slice(1);
    said.textContent = reading(state);
    for (const button of root.querySelectorAll(".sheet button")) {
      const on = +button.dataset.layer === state.layer && state.heads.includes(+button.dataset.head);
      button.setAttribute("aria-pressed", String(on));
    }
    for (const chip of root.querySelectorAll(".chips button[data-head]"))
      chip.setAttribute("aria-pressed", String(state.heads.includes(chip.dataset.head === "" ? null : +chip.dataset.head)));
  }
  function build() {
    state.lines = name === "lines";
    if (name === "picture") state.filter = "all";
    current = views[name](state);
    stage.replaceChildren(current.element);
    tools.replaceChildren(...controls());
    sheets.forEach((sheet, at) => { sheet.hidden = at !== state.pairAt; });
    draw();
  }
  function choose(change) {
    change();
    draw();
  }
  function select(label, values, value, chosen) {
    const box = node("select", {"aria-label": label, onchange: () => chosen(values[box.selectedIndex][0])},
      ...values.map(([own, text]) => node("option", {selected: own === value}, text)));
    return node("label", {}, label, box);
  }
  /* A chip per head: one click adds or takes away, two leave it alone. */
  function chips() {
    const {heads} = state.pair, all = [...Array(heads).keys()];
    const chip = head => node("button", {
      type: "button", "data-head": head ?? "", title: head === null ? "the mean of all heads" : "double-click: this head alone",
      onclick: () => choose(() => {
        const others = state.heads.filter(one => one !== null && one !== head);
        state.heads = head === null ? [null] : state.heads.includes(head) ? (others.length ? others : [head])
          : [...others, head].sort((a, b) => a - b);
      }),
      ondblclick: () => choose(() => { state.heads = [head]; }),
    }, node("i", {style: `background:${state.colour(head)}`}), head === null ? "mean" : String(head));
    const every = node("button", {type: "button", onclick: () => choose(() => { state.heads = all; })}, "all");
    return node("div", {class: "chips", role: "group", "aria-label": "heads"}, node("span", {}, "Heads"),
      ...(heads > 1 ? [chip(null)] : []), ...all.map(chip), ...(heads > 1 ? [every] : []));
  }
  function filters() {
    const groups = [...new Set([...state.pair.rows, ...state.pair.columns].map(at => data.group[at]))];
    if (groups.length < 2 || !state.same || name === "picture") return [];
    const named = groups.length > 2 ? [] : groups.flatMap(a => groups.map(b => [`${a}:${b}`, `${data.groups[a]} → ${data.groups[b]}`]));
    const all = [["all", "all"], ["within", "within a part"], ["between", "between parts"], ...named];
    return [select("Show", all, state.filter, value => choose(() => { state.filter = value; }))];
  }
  function controls() {
    const {pair} = state, layers = Object.keys(pair.maps).map(Number), most = pair.columns.length;
    const pairs = data.pairs.map((one, at) => [at, one.streams.join(" → ")]).filter(([at]) => Object.keys(data.pairs[at].maps).length);
    const limits = [...[1, 3, 10, 30].filter(count => count < most).map(count => [count, `${count} largest`]), [Infinity, "all kept"]];
    return [
      ...(pairs.length > 1 ? [choice("streams", pairs, state.pairAt, at => {
        Object.assign(state, {pairAt: at, query: null, filter: "all"});
        state.layer = Math.min(state.layer, data.pairs[at].layers - 1);
        state.heads = state.heads.filter(head => head === null || head < data.pairs[at].heads);
        if (!state.heads.length) state.heads = [null];
        defaults();
        build();
      })] : []),
      choice("view", names().map(one => [one, one]), name, one => { name = one; build(); }),
      select("Layer", layers.map(layer => [layer, String(layer)]), state.layer, layer => choose(() => { state.layer = layer; })),
      chips(), ...filters(),
      ...(name === "lines" && limits.length > 1
        ? [select("Lines of a query", limits, state.limit, count => choose(() => { state.limit = count; }))] : []),
      action("Save as SVG", "saved", () => whence.download(
        `attention-${state.title.replaceAll(/[^a-z0-9]+/g, "-")}.svg`, whence.attention.drawing(current.svg(), state), "image/svg+xml")),
    ];
  }
  sheets.forEach((sheet, at) => whence.attention.sheet(sheet.querySelector(".sheet"), data.pairs[at], (layer, head) => {
    Object.assign(state, {layer, heads: [head]});
    build();
    const {top} = title.getBoundingClientRect();
    if (top < 0 || top > innerHeight / 2) title.scrollIntoView({block: "start"});
    title.focus({preventScroll: true});
  }));
  state.changed = draw;
  said.before(title, tools);
  defaults();
  build();
});
