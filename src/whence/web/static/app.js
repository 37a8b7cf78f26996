"use strict";
/* The app: a form that starts jobs, and results that arrive one after the other. It uses only the addresses below /api. */
(() => {
  const {node} = whence;
  const at = id => document.getElementById(id);
  const USUAL = {
    text: ["leave_one_out", "integrated_gradients", "lrp", "gae", "attention", "random"],
    picture: ["gae", "integrated_gradients", "lrp", "rollout", "rise", "random"],
  };
  const HINTS = { // what is written into parts that are no plain text
    messages: '[{"role": "user", "content": "…"}], in place of the text above',
    max_tokens: "the most tokens that the model writes, as 20",
    stop: "a text at which the model stops writing",
  };
  const CHOSEN = 3; // of the usual methods, those that are ticked at first
  const LONGEST_LINK = 4000;
  const MOST_CHANGED = 8; // tokens that are shown at first of what changed
  const MOST_WORDS = 120; // that can be pressed to be ignored
  const now = {model: null, methods: [], picture: null, example: null, job: null, source: null, last: null, timer: null};

  /* ---- asking the server ------------------------------------------------------------------------------------------ */

  async function ask(path, options = {}) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("the server does not answer; is whence serve still running?");
    }
    const kind = answer.headers.get("content-type") ?? "";
    const body = kind.startsWith("application/json") ? await answer.json() : await answer.text();
    if (!answer.ok) throw new Error(body.error ?? `the server answered ${answer.status}`);
    return body;
  }

  const send = (path, content) =>
    ask(path, {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(content)});

  function fail(error) {
    at("error").textContent = error.message;
    at("error").hidden = false;
  }

  function say(text) {
    at("status").textContent = text;
  }

  /* HTML that the library made, as nodes; scripts inside would not run, and the server forbids them as well. */
  async function fragment(job, which) {
    const parsed = new DOMParser().parseFromString(await ask(`/api/jobs/${job}/results/${which}/fragment`), "text/html");
    const place = node("div", {class: "fragment"}, ...document.adoptNode(parsed.body).childNodes);
    return place;
  }

  /* ---- the form --------------------------------------------------------------------------------------------------- */

  async function listModels() {
    const models = await ask("/api/models");
    const known = new Set(["planted", "recall", "dates", "shapes", "textures", "photos"]);
    const groups = [
      ["Your models", models.filter(model => !model.embedded)],
      ["Trained on data", models.filter(model => model.embedded && !known.has(model.name))],
      ["Playground: what decides is known", models.filter(model => model.embedded && known.has(model.name))],
    ];
    for (const [label, own] of groups) {
      if (!own.length) continue;
      at("model").append(node("optgroup", {label}, ...own.map(model => {
        const option = node("option", {value: model.name}, model.name);
        option.dataset.what = model.what ?? "";
        return option;
      })));
    }
  }

  async function chooseModel(name, link = null) {
    at("model").value = name;
    at("model").disabled = true;
    try {
      const model = await ask(`/api/models/${encodeURIComponent(name)}`);
      Object.assign(now, {model, picture: null, example: null, last: null});
      at("ignore").value = "";
      at("what").textContent = [model.what, model.family].filter(Boolean).join(". ");
      showParts(model);
      showGallery(model);
      showTarget(model);
      if (!link && model.examples.length) takeExample(model.examples[0]);
      say("The libraries are being loaded …");
      now.methods = await ask(`/api/models/${encodeURIComponent(name)}/methods`);
      showMethods(model);
      say("");
    } finally {
      at("model").disabled = false;
    }
  }

  function showParts(model) {
    at("parts").replaceChildren(...model.parts.flatMap(part => {
      const id = `part-${part.name}`;
      const title = part.name[0].toUpperCase() + part.name.slice(1).replace("image", "picture").replace("_", " ");
      const label = node("label", {class: "field", for: id}, part.kind === "picture" ? "Picture" : title);
      if (part.kind === "picture") return [label, dropPlace(id)];
      const tall = part.required || part.name === "messages";
      const area = node("textarea", {id, rows: tall ? 3 : 1, class: tall ? "" : "short", dir: "auto",
        maxlength: 20000, placeholder: HINTS[part.name] ?? "", oninput: () => pressed(null)});
      area.addEventListener("keydown", event => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
      });
      return part.required ? [label, area] : [node("details", {}, node("summary", {}, `${title} (may stay empty)`), area)];
    }));
    for (const details of at("parts").querySelectorAll("details")) {
      details.querySelector("textarea").setAttribute("aria-label", details.querySelector("summary").textContent);
    }
  }

  function dropPlace(id) {
    const input = node("input", {type: "file", id, accept: "image/png,image/jpeg,image/webp,image/gif,image/bmp"});
    const place = node("label", {class: "drop", for: id}, node("span", {}, "Drop a picture here, or choose a file"), input);
    input.addEventListener("change", () => takeFile(input.files[0]));
    for (const kind of ["dragenter", "dragover"]) {
      place.addEventListener(kind, event => { event.preventDefault(); place.classList.add("over"); });
    }
    place.addEventListener("dragleave", () => place.classList.remove("over"));
    place.addEventListener("drop", event => {
      event.preventDefault();
      place.classList.remove("over");
      takeFile(event.dataTransfer.files[0]);
    });
    return place;
  }

  function showPicture(source, text) {
    const place = document.querySelector(".app .drop");
    place.querySelector("img")?.remove();
    place.prepend(node("img", {src: source, alt: ""}));
    place.querySelector("span").textContent = text;
  }

  function takeFile(file) {
    if (!file) return;
    now.picture = {file, name: null};
    now.example = null;
    pressed(null);
    showPicture(URL.createObjectURL(file), file.name);
  }

  function fill(part, text) {
    const area = at(`part-${part.name}`);
    area.value = text;
    const folded = area.closest("details");
    if (folded && text) folded.open = true;
  }

  function takeExample(example) {
    for (const part of now.model.parts) {
      if (part.kind === "text") fill(part, example.texts[part.name] ?? "");
    }
    now.example = example.number;
    now.picture = null;
    if (example.picture) showPicture(example.picture, example.label ? `An example: ${example.label}` : "An example");
    pressed(example.number);
  }

  function pressed(example) {
    for (const button of at("gallery").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(example !== null && button.dataset.number === String(example)));
    }
  }

  function showGallery(model) {
    at("gallery").replaceChildren(...model.examples.map(example => {
      const texts = Object.values(example.texts).join(" | ");
      const name = `Example: ${[texts, example.label].filter(Boolean).join(", ")}`;
      const inside = example.picture ? node("img", {src: example.picture, alt: ""}) : texts;
      const button = node("button", {type: "button", title: name, "aria-label": name, "aria-pressed": "false"}, inside);
      button.dataset.number = example.number;
      button.addEventListener("click", () => takeExample(example));
      return button;
    }));
  }

  function showTarget(model) {
    const control = model.labels
      ? node("select", {id: "target"}, node("option", {value: ""}, "what the model predicts"),
          ...model.labels.map(label => node("option", {value: label}, label)))
      : node("input", {id: "target", type: "text", placeholder: "what the model predicts", maxlength: 300,
          autocomplete: "off"});
    at("target-place").replaceChildren(control);
  }

  function chip(method, checked) {
    const box = node("input", {type: "checkbox", value: method.name});
    box.checked = checked;
    return node("label", {class: "chip-box", title: method.summary}, box, method.name);
  }

  function showMethods(model) {
    const usual = USUAL[model.parts.some(part => part.kind === "picture") ? "picture" : "text"];
    const byName = new Map(now.methods.map(method => [method.name, method]));
    const first = usual.filter(name => byName.has(name));
    at("chips").replaceChildren(...first.map((name, place) => chip(byName.get(name), place < CHOSEN)));
    const families = Map.groupBy
      ? Map.groupBy(now.methods.filter(method => !first.includes(method.name)), method => method.family)
      : now.methods.filter(method => !first.includes(method.name)).reduce((groups, method) =>
          groups.set(method.family, [...(groups.get(method.family) ?? []), method]), new Map());
    at("more").replaceChildren(...[...families].flatMap(([family, methods]) => [
      node("h3", {class: "family"}, family), node("div", {class: "chips"}, ...methods.map(method => chip(method, false)))]));
  }

  const boxes = () => [...at("methods").querySelectorAll("input[type=checkbox]")];

  function chosenMethods() {
    const ticked = boxes().filter(box => box.checked).map(box => box.value);
    const own = splitSpecs(at("spec").value);
    return [...new Set([...ticked, ...own])];
  }

  /* "a, b(x=1, y=2)" to its methods: commas inside brackets do not separate. */
  function splitSpecs(text) {
    const specs = [""];
    let depth = 0;
    for (const letter of text) {
      depth += {"(": 1, "[": 1, ")": -1, "]": -1}[letter] ?? 0;
      if ((letter === "," || letter === ";") && depth <= 0) specs.push("");
      else specs[specs.length - 1] += letter;
    }
    return specs.map(spec => spec.trim()).filter(Boolean);
  }

  const ignored = () => [...new Set(at("ignore").value.split(",").map(word => word.trim()).filter(Boolean))];

  /* The words of the input as buttons; those that are pressed are in the field of words that must not count. */
  function wordButtons(words) {
    const same = (a, b) => a.toLowerCase() === b.toLowerCase();
    return node("details", {class: "to-ignore", ...(ignored().length ? {open: true} : {})}, node("summary", {}, "Choose words that must not count"),
      node("div", {class: "chips", role: "group", "aria-label": "Words that must not count"}, ...words.map(word => {
        const button = node("button", {type: "button", class: "action", dir: "auto", "aria-pressed": String(ignored().some(other => same(other, word)))}, word);
        button.addEventListener("click", () => {
          const pressed = button.getAttribute("aria-pressed") !== "true";
          const others = ignored().filter(other => !same(other, word));
          at("ignore").value = [...others, ...(pressed ? [word] : [])].join(", ");
          button.setAttribute("aria-pressed", String(pressed));
        });
        return button;
      })), node("p", {class: "dim"}, "Press Explain again: attention to these words is then closed in every layer."));
  }

  function texts() {
    const found = {};
    for (const part of now.model.parts) {
      const value = part.kind === "text" ? at(`part-${part.name}`).value : "";
      if (value) found[part.name] = value;
    }
    return found;
  }

  /* ---- links that say what was run -------------------------------------------------------------------------------- */

  function link(wanted) {
    const said = new URLSearchParams({model: wanted.model});
    for (const [part, text] of Object.entries(wanted.texts)) said.set(`text.${part}`, text);
    if (wanted.example !== null) said.set("example", wanted.example);
    if (wanted.target !== null) said.set("target", wanted.target);
    if (wanted.level !== "token") said.set("level", wanted.level);
    if (wanted.ignore.length) said.set("ignore", wanted.ignore.join(","));
    if (wanted.methods.length) said.set("methods", wanted.methods.join(";"));
    const hash = `#${said}`;
    return wanted.picture || hash.length > LONGEST_LINK ? null : `${location.origin}/${hash}`;
  }

  async function follow() {
    const said = new URLSearchParams(location.hash.slice(1));
    const names = [...at("model").options].map(option => option.value);
    const wanted = said.get("model");
    if (!names.includes(wanted)) {
      if (wanted) fail(new Error(`the link names the model ${wanted}, which is not served here`));
      return chooseModel(names[0]);
    }
    await chooseModel(wanted, said);
    const typed = [...said.keys()].some(key => key.startsWith("text."));
    const example = now.model.examples[Number(said.get("example") ?? (typed ? NaN : 0))];
    if (example) takeExample(example);
    for (const part of now.model.parts) {
      const given = said.get(`text.${part.name}`);
      if (part.kind === "text" && (given !== null || !example)) fill(part, (given ?? "").slice(0, 20000));
    }
    at("target").value = said.get("target") ?? "";
    const levels = [...at("level").options].map(option => option.value);
    at("level").value = levels.includes(said.get("level")) ? said.get("level") : "token";
    at("ignore").value = said.get("ignore") ?? "";
    const specs = splitSpecs(said.get("methods") ?? "");
    if (specs.length) {
      for (const box of boxes()) box.checked = specs.includes(box.value);
      at("spec").value = specs.filter(spec => !boxes().some(box => box.value === spec)).join(", ");
      await run("explain");
    }
  }

  /* ---- running ---------------------------------------------------------------------------------------------------- */

  async function wantedNow(kind) {
    if (now.picture && !now.picture.name) {
      const sent = await ask("/api/pictures", {method: "POST", body: now.picture.file});
      now.picture.name = sent.picture;
    }
    return {
      model: now.model.name,
      kind,
      texts: texts(),
      picture: now.picture?.name ?? null,
      example: now.example,
      target: at("target").value || null,
      level: at("level").value,
      methods: kind === "explain" ? chosenMethods() : [],
      ignore: ignored(),
    };
  }

  async function run(kind) {
    if (!now.model) return;
    stop();
    at("error").hidden = true;
    busy(true);
    try {
      const wanted = await wantedNow(kind);
      if (kind === "explain" && !wanted.methods.length) throw new Error("choose at least one method");
      const {job} = await send("/api/jobs", wanted);
      const address = kind === "explain" ? link(wanted) : null;
      if (address) history.replaceState(null, "", address);
      show(kind === "explain" ? new Run(job, wanted, address) : new Maps(job));
    } catch (error) {
      if (now.picture) now.picture.name = null; // it may not be kept any more: the next run sends it again
      busy(false);
      say("");
      fail(error);
    }
  }

  function busy(running) {
    at("cancel").hidden = !running;
    at("run").disabled = at("look").disabled = running;
    clearInterval(now.timer);
  }

  /* Follow a job's events until it ends; every kind of event is a function of `view`. */
  function show(view, place = null) {
    now.job = view.job;
    busy(true);
    if (!place) {
      at("results").replaceChildren(view.element);
      if (innerWidth <= 900) at("results").scrollIntoView({block: "start"});
    }
    const source = new EventSource(`/api/jobs/${view.job}/events`);
    now.source = source;
    const ended = text => {
      source.close();
      if (now.source === source) {
        now.source = now.job = null;
        busy(false);
        say(text);
      }
    };
    const on = (name, act) => source.addEventListener(name, event => act(JSON.parse(event.data)));
    on("waiting", told => say(told.ahead ? `Waiting: ${told.ahead} before this one` : "Starting …"));
    on("started", () => say("Running …"));
    for (const name of ["input", "method", "result", "refused"]) on(name, told => view[name]?.(told));
    on("done", () => { view.done?.(); ended(view.ready?.() ?? "Done"); });
    on("cancelled", () => { view.left?.("cancelled"); ended("Cancelled"); });
    on("failed", told => { view.left?.(told.error); ended(""); fail(new Error(told.error)); });
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED && now.source === source) {
        view.left?.("the connection was lost");
        ended("");
        fail(new Error("the connection to the server was lost; run it again"));
      }
    };
  }

  function stop() {
    if (now.job) ask(`/api/jobs/${now.job}`, {method: "DELETE"}).catch(fail);
  }

  /* ---- what a run shows ------------------------------------------------------------------------------------------- */

  function files(job, which, endings) {
    return node("span", {class: "files"}, ...endings.map(ending =>
      node("a", {href: `/api/jobs/${job}/results/${which}.${ending}`, download: `whence-${which}.${ending}`,
        "aria-label": `download ${ending}`}, ending === "html" ? "page" : ending)));
  }

  const FILES = ["html", "pdf", "svg", "png", "json"];
  const percent = share => `${(100 * share).toFixed(1)}\u00a0%`;

  /* Probabilities as bars; those of the run before as thin grey ones beneath. */
  function bars(prediction, before) {
    const old = new Map((before ?? []).map(one => [one.label, one.probability]));
    return node("div", {class: "bars-of"}, ...prediction.flatMap((one, place) => [
      node("span", {class: place ? "" : "first", dir: "auto"}, one.label),
      node("span", {}, node("i", {style: `width:${(100 * one.probability).toFixed(2)}%`}),
        ...(old.has(one.label) ? [node("i", {class: "was", style: `width:${(100 * old.get(one.label)).toFixed(2)}%`})] : [])),
      node("span", {class: place ? "" : "first"}, percent(one.probability)),
    ]));
  }

  class Run {
    constructor(job, wanted, address) {
      Object.assign(this, {job, wanted, address, cards: [], count: 0, before: null});
      if (now.last && now.last.wanted.model === wanted.model) this.before = now.last;
      this.head = node("section", {class: "card", "aria-label": "Prediction"}, node("p", {class: "dim"}, "The model reads the input …"));
      this.list = node("div", {});
      this.whole = node("section", {class: "card", "aria-label": "Side by side", hidden: true});
      this.tools = node("div", {class: "tools", hidden: true});
      this.change = node("div", {});
      this.element = node("div", {}, this.head, this.tools, this.change, this.list, this.whole);
      for (const method of wanted.methods) {
        const card = node("section", {class: "card pending", "aria-label": method},
          node("header", {}, node("h2", {}, method), node("span", {class: "dim"}, "waits")));
        this.cards.push(card);
        this.list.append(card);
      }
    }

    input(told) {
      this.about = told;
      const shown = [];
      if (told.without && told.prediction) {
        const names = told.ignored.map(word => `‘${word}’`).join(", ");
        const column = (name, prediction) => node("section", {"aria-label": name}, node("h3", {dir: "auto"}, name), bars(prediction));
        shown.push(node("header", {}, node("h2", {}, "prediction")), node("div", {class: "beside"},
          column("as it is", told.without), column(`ignoring ${names}`, told.prediction)));
      } else if (told.prediction) {
        shown.push(node("header", {}, node("h2", {}, "prediction"),
          ...(this.before?.about?.prediction ? [node("span", {class: "dim"}, "thin grey bars: before the edit")] : [])),
        bars(told.prediction, this.before?.about?.prediction));
      } else {
        shown.push(node("header", {}, node("h2", {}, "input"), node("span", {class: "dim"}, `${told.features.length} tokens and patches`)));
      }
      if (told.truth && !Array.isArray(told.truth[0])) shown.push(this.decisive(told));
      for (const note of told.notes) shown.push(node("p", {class: "dim"}, note));
      const words = told.words.filter(word => !word.includes(",")).slice(0, MOST_WORDS);
      if (words.length > 1) shown.push(wordButtons(words));
      this.head.replaceChildren(...shown);
    }

    /* The features that decide, by construction of the model's data: words in their text, patches on their picture. */
    decisive(told) {
      const patches = new Set(told.grid?.features ?? []);
      const words = told.features.map((name, i) => [name, told.truth[i], i])
        .filter(([, , i]) => !told.special[i] && !patches.has(i));
      const shown = node("div", {class: "truth"}, node("span", {class: "dim"}, "What decides, by construction: "),
        ...words.map(([name, decides]) => node("b", {class: decides ? "decides" : ""}, name.trim() || name)));
      const example = now.model.examples[this.wanted.example];
      if (told.grid && example?.picture) {
        const [left, top, width, height] = told.grid.place;
        const count = told.grid.features.filter(i => told.truth[i]).length;
        shown.append(node("div", {class: "where", role: "img", "aria-label": `${count} patches of the picture decide`},
          node("img", {src: example.picture, alt: ""}),
          node("div", {style: `left:${left}%;top:${top}%;width:${width}%;height:${height}%;` +
            `grid-template-columns:repeat(${told.grid.columns},1fr)`},
          ...told.grid.features.map(i => node("i", {class: told.truth[i] ? "decides" : ""})))));
      }
      return shown;
    }

    method(told) {
      const clock = node("span", {class: "dim"}, "0.0 s");
      const card = this.cards[told.number];
      card.querySelector("header .dim").replaceWith(clock);
      card.append(node("div", {class: "progress"}, node("i")));
      const began = performance.now();
      clearInterval(now.timer);
      now.timer = setInterval(() => { clock.textContent = `running for ${((performance.now() - began) / 1000).toFixed(1)} s`; }, 200);
      say(`${told.method} (${told.number + 1} of ${told.of}) …`);
    }

    async result(told) {
      this.count += 1;
      const card = this.cards[told.number], facts = [node("h2", {}, told.method), node("span", {class: "dim"}, `${told.seconds.toFixed(2)} s`)];
      if (told.truth) {
        const {found, of} = told.truth;
        const kind = found === of ? "all" : found ? "some" : "none";
        facts.push(node("span", {class: `found ${kind}`}, `finds ${found} of ${of} that decide`));
      }
      facts.push(files(this.job, told.result, FILES));
      say(`${told.method} is ready`);
      try {
        const body = await fragment(this.job, told.result);
        card.classList.remove("pending");
        card.replaceChildren(node("header", {}, ...facts), body);
        whence.enhance(card);
      } catch (error) { fail(error); }
    }

    refused(told) {
      const card = this.cards[told.number];
      card.replaceChildren(node("header", {}, node("h2", {}, told.method)), node("p", {}, told.error));
    }

    left(why) {
      for (const card of this.cards) {
        if (!card.classList.contains("pending")) continue;
        card.querySelector(".progress")?.remove();
        const said = card.querySelector("header .dim");
        if (said) said.textContent = why;
      }
      if (this.count) this.done();
    }

    ready() {
      return `Done: ${this.count} of ${this.cards.length} methods`;
    }

    async done() {
      if (!this.count) return;
      now.last = this;
      const several = this.count > 1;
      this.tools.hidden = false;
      this.tools.replaceChildren(
        ...(several ? [whence.choice("How results are shown", [["list", "one by one"], ["whole", "side by side"]], "list",
          value => this.arrange(value))] : []),
        node("button", {type: "button", class: "action", onclick: () => this.measure()}, "Measure this"),
        ...(this.address ? [whence.action("Copy link", "copied", () => whence.copy(this.address))]
          : [node("span", {class: "dim"}, "no link: the picture is yours, or the text is long")]),
        ...(several ? [files(this.job, "all", FILES)] : []));
      if (this.before) await this.compare();
    }

    async arrange(value) {
      this.list.hidden = value === "whole";
      this.whole.hidden = value !== "whole";
      if (value === "whole" && !this.whole.childNodes.length) {
        try {
          this.whole.append(await fragment(this.job, "all"));
          whence.enhance(this.whole);
        } catch (error) { fail(error); }
      }
    }

    async measure() {
      try {
        const {job} = await send(`/api/jobs/${this.job}/measure`, {metric: "auac"});
        const card = node("section", {class: "card pending", "aria-label": "Measured"},
          node("header", {}, node("h2", {}, "how faithful is this?")), node("div", {class: "progress"}, node("i")));
        this.change.before(card);
        const result = async told => {
          const body = await fragment(job, 0);
          card.classList.remove("pending");
          card.replaceChildren(node("header", {}, node("h2", {}, "how faithful is this?"), files(job, 0, FILES)),
            node("p", {class: "dim"}, `${told.metric}, ${told.better} is better. ${told.summary}`), body);
          whence.enhance(card);
        };
        show({job, result: told => result(told).catch(fail), left: why => card.replaceChildren(node("p", {}, why))}, card);
      } catch (error) { fail(error); }
    }

    /* Scores before and after an edit, for the methods that both runs have. */
    async compare() {
      let found;
      try {
        found = await ask(`/api/jobs/${this.job}/changes/${this.before.job}`);
      } catch { return; } // the run before is not kept any more
      const texty = found.methods.filter(method => method.tokens.some(row => !/^(patch|region) /.test(row.token)));
      const edited = texty.some(method => method.tokens.some(row => row.before !== row.now));
      if (!edited) return;
      const table = (method, rows) => {
        const sizes = rows.flatMap(row => [row.before ?? 0, row.now ?? 0]).map(Math.abs);
        const digits = Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.max(...sizes, 1e-9)))));
        const fixed = (value, sign) => {
          const size = Math.abs(value).toFixed(digits);
          return (Number(size) === 0 ? "" : value < 0 ? "−" : sign ? "+" : "") + size;
        };
        const cell = value => node("td", {}, value === null ? "–" : fixed(value, method.signed));
        return node("table", {}, node("caption", {class: "dim"}, method.method),
          node("thead", {}, node("tr", {}, ...["token", "before", "now", "change"].map(name => node("th", {scope: "col"}, name)))),
          node("tbody", {}, ...rows.map(row => {
            const both = row.before !== null && row.now !== null, step = both ? fixed(row.now - row.before, true) : "";
            const said = both ? step : row.now === null ? "gone" : "new";
            const kind = {"+": "up", "−": "down"}[said[0]] ?? "same";
            return node("tr", {}, node("th", {scope: "row", dir: "auto"}, row.token.trim() || row.token), cell(row.before),
              cell(row.now), node("td", {class: kind}, said));
          })));
      };
      /* The tokens that changed most, in the order of the text; all of them on demand. */
      const shown = method => {
        const rows = method.tokens.filter(row => !row.special).slice(0, 300);
        const size = row => Math.abs((row.now ?? 0) - (row.before ?? 0));
        const largest = new Set([...rows].sort((a, b) => size(b) - size(a)).slice(0, MOST_CHANGED));
        return [table(method, rows.filter(row => largest.has(row))), ...(rows.length > MOST_CHANGED
          ? [node("details", {}, node("summary", {}, `All ${rows.length} tokens`), table(method, rows))] : [])];
      };
      const place = node("div", {class: "before-after"}, ...shown(texty[0]));
      this.change.replaceChildren(node("section", {class: "card", "aria-label": "What changed"},
        node("header", {}, node("h2", {}, "what changed"), ...(texty.length > 1 ? [whence.choice("Method",
          texty.map((method, i) => [i, method.method]), 0, i => place.replaceChildren(...shown(texty[i])))] : [])), place));
    }
  }

  class Maps {
    constructor(job) {
      this.job = job;
      this.element = node("section", {class: "card pending", "aria-label": "Attention"},
        node("header", {}, node("h2", {}, "attention")), node("div", {class: "progress"}, node("i")));
    }

    async result() {
      try {
        const body = await fragment(this.job, 0);
        this.element.classList.remove("pending");
        this.element.replaceChildren(node("header", {}, node("h2", {}, "attention"), files(this.job, 0, ["html", "pdf", "svg", "png"])), body);
        whence.enhance(this.element);
      } catch (error) { fail(error); }
    }

    left(why) {
      this.element.replaceChildren(node("p", {}, why));
    }
  }

  /* ---- light and dark --------------------------------------------------------------------------------------------- */

  function kept(value) {
    try {
      if (value !== undefined) localStorage.setItem("whence-theme", value);
      return localStorage.getItem("whence-theme");
    } catch { return null; }
  }

  function theme(value) {
    if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
    const dark = (value ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    at("theme").textContent = dark ? "Light" : "Dark";
    at("theme").onclick = () => theme(kept(dark ? "light" : "dark") ?? (dark ? "light" : "dark"));
  }

  document.addEventListener("DOMContentLoaded", async () => {
    theme(kept());
    at("ask").addEventListener("submit", event => { event.preventDefault(); run("explain"); });
    at("look").addEventListener("click", () => run("attention"));
    at("cancel").addEventListener("click", stop);
    at("model").addEventListener("change", () => chooseModel(at("model").value).catch(fail));
    addEventListener("hashchange", () => follow().catch(fail));
    addEventListener("dragover", event => event.preventDefault()); // a picture dropped beside its place does not replace the page
    addEventListener("drop", event => event.preventDefault());
    try {
      await listModels();
      await follow();
    } catch (error) { fail(error); }
  });
})();
