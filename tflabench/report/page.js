"use strict";
// Shows what the payload holds. All texts become text nodes; nothing is computed but what is picked, sorted and filtered.
(async () => {
  const $ = (id) => document.getElementById(id);
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const tag = (name, more = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), more);
    made.append(...inside);
    return made;
  };
  const failed = (why) => Object.assign($("failed"), { hidden: false, textContent: `This page cannot be shown: ${why}` });
  addEventListener("error", (event) => failed(event.message));
  addEventListener("unhandledrejection", (event) => failed(event.reason));
  const data = JSON.parse(await unpack("payload"));
  const state = new URLSearchParams(location.hash.slice(1));
  function keep(name, value) {
    if (value) state.set(name, value);
    else state.delete(name);
    history.replaceState(null, "", `#${state}`);
  }
  document.title = `${data.title} · tflabench report`;
  $("title").textContent = data.title;
  $("origin").textContent = `${data.origin} · report of tflabench ${data.version}`;

  // --- rows: at(name, row) is a word, a number or null
  const columns = Object.fromEntries(data.rows.map((column) => [column.name, column]));
  const all = [...data.rows[0].values.keys()];
  const cell = ({ words, values }, row) => (words ? words[values[row]] : values[row]);
  const at = (name, row) => cell(columns[name], row);
  const digits = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(4));
  const written = (value) => (typeof value === "number" ? digits(value) : (value ?? ""));
  const hidden = (name) => (state.get("only") ?? name) !== name || (state.get("hide") ?? "").split("\n").includes(name);

  // --- theme
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => state.get("theme") ?? (dark.matches ? "dark" : "light");
  const other = () => (theme() === "dark" ? "light" : "dark");
  function paint() {
    document.documentElement.dataset.theme = theme();
    $("theme").textContent = other();
    draw();
  }
  $("theme").onclick = () => {
    keep("theme", other());
    paint();
  };
  dark.addEventListener("change", paint);

  // --- selection: each selector offers what charts have that match those before it
  function picks(name, options) {
    const box = tag("select", { id: `pick-${name}` }, ...options.map((option) => new Option(option)));
    box.value = options.includes(state.get(name)) ? state.get(name) : options[0];
    return box;
  }
  let shown;
  function select() {
    let left = data.charts;
    $("select").replaceChildren();
    for (const [name, label] of Object.entries(data.selectors)) {
      const options = [...new Set(left.map((chart) => chart[name]))];
      const box = picks(name, options);
      box.onchange = () => {
        keep(name, box.value);
        select();
        $(box.id).focus();
        draw();
      };
      left = left.filter((chart) => chart[name] === box.value);
      $("select").append(tag("label", { hidden: options.length < 2 && name === "results" }, label, box));
    }
    [shown] = left;
  }

  // --- chart
  const narrow = matchMedia("(max-width: 700px)");
  narrow.addEventListener("change", () => draw());
  async function plotted(id, plot) {
    const text = JSON.stringify(plot);
    const found = JSON.parse(theme() === "dark" ? text.replace(/#[0-9a-f]{6}/g, (ink) => data.dark[ink] ?? ink) : text);
    const { data: traces, layout } = found;
    const style = getComputedStyle(document.body);
    const line = style.getPropertyValue("--line");
    for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { gridcolor: line, linecolor: line });
    const font = { color: style.color, family: style.fontFamily, size: narrow.matches ? 10 : 12 };
    Object.assign(layout, { font, paper_bgcolor: "transparent", plot_bgcolor: "transparent" });
    if (narrow.matches) {
      Object.assign(layout.margin, { r: 12, l: 48 });
      Object.assign(layout.legend, { orientation: "h", y: -0.25 });
    }
    for (const trace of traces) trace.visible = !(trace.meta && hidden(trace.meta));
    const drawn = await Plotly.react(id, traces, layout, { displayModeBar: false, responsive: true });
    drawn.removeAllListeners("plotly_hover");
    drawn.removeAllListeners("plotly_unhover");
    drawn.on("plotly_hover", ({ points, event }) => card(points[0].customdata, event.clientX, event.clientY));
    drawn.on("plotly_unhover", () => ($("card").hidden = true));
  }
  function draw() {
    if (!self.Plotly || !shown) return;
    $("head").textContent = shown.title;
    $("setting").textContent = shown.setting;
    plotted("plot", shown.plot);
    const names = ["gpu", "results", "dtype", "pass"];
    const roof = data.rooflines.find((one) => names.every((name) => one[name] === shown[name]));
    if (roof && $("fold-roofline").open) {
      plotted("roofline", roof.plot);
      $("roofline-setting").textContent = `${roof.title}. ${roof.setting}`;
    }
  }

  // --- what is known of a point
  const fact = ([name, value]) => [tag("dt", {}, name), tag("dd", {}, value)];
  const list = (facts) => tag("dl", {}, ...facts.flatMap(fact));
  function card(row, x, y) {
    if (row === undefined) return;
    const size = `${at("pass", row)}, T ${at("seq_len", row)}, batch ${at("batch", row)}, ${at("heads", row)} heads, `;
    const where = `${size}d_qk ${at("d_qk", row)}, d_hv ${at("d_hv", row)}, ${at("dtype", row)}`;
    const names = "chunk_size ms_median ms_p20 ms_p80 model_ms_lower percent_of_bound tflops peak_gib rel_error".split(" ");
    const facts = names.map((name) => [columns[name].heading, written(at(name, row))]).filter(([, value]) => value);
    const said = [at("status", row) === "ok" ? "" : at("status", row), at("remarks", row)].filter(Boolean).join(": ");
    const flag = tag("p", { className: "flag" }, said);
    $("card").replaceChildren(tag("b", {}, at("title", row)), tag("p", {}, where), list(facts), flag);
    $("card").hidden = false;
    const { width, height } = $("card").getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : x - width - 16;
    $("card").style.left = `${Math.max(6, Math.min(left, innerWidth - width - 6))}px`;
    $("card").style.top = `${Math.max(6, Math.min(y + 16, innerHeight - height - 6))}px`;
  }
  addEventListener("scroll", () => ($("card").hidden = true), { passive: true });
  let step = -1;
  $("plot").onkeydown = (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") $("card").hidden = true;
    if (!move) return;
    event.preventDefault();
    const lit = shown.plot.data.filter((trace) => trace.customdata && (trace.marker || trace.type === "bar"));
    const rows = lit.filter(({ meta }) => !hidden(meta)).flatMap((trace) => trace.customdata);
    step = (step + move + rows.length) % rows.length;
    const box = $("plot").getBoundingClientRect();
    if (rows.length) card(rows[step], box.left + 60, box.top + 10);
  };

  // --- all rows: 50 at a time, one row of filters
  const PAGE = 50;
  let page = 0;
  let kept = [];
  const visible = data.rows.filter(({ name, values, words }) =>
    name !== "implementation" && (words ? words.length > 1 || name === "title" : values.some((value) => value !== null)));
  const tests = {
    "": (value, bound) => value === bound,
    "<": (value, bound) => value < bound,
    ">": (value, bound) => value > bound,
    "<=": (value, bound) => value <= bound,
    ">=": (value, bound) => value >= bound,
  };
  function passing({ words, name, values }) {
    const wanted = state.get(`f-${name}`) ?? "";
    if (words) {
      const fits = words.map((word) => word.toLowerCase().includes(wanted.toLowerCase()));
      return (row) => fits[values[row]];
    }
    const [, sign, number] = /^(<=|>=|<|>|)\s*(.*)$/.exec(wanted);
    const fits = (value) => tests[sign](value, Number(number)) || (!sign && written(value) === number);
    return (row) => !wanted || (values[row] !== null && fits(values[row]));
  }
  function filter() {
    const wanted = visible.map(passing);
    const off = columns.implementation.words.map(hidden);
    kept = all.filter((row) => !off[columns.implementation.values[row]] && wanted.every((fits) => fits(row)));
    const [, name, down] = /^(.*?)(-?)$/.exec(state.get("sort") ?? "ms_median");
    const compare = columns[name]?.words ? new Intl.Collator().compare : (a, b) => a - b;
    const order = (a, b) => (a === null) - (b === null) || (down ? -1 : 1) * compare(a, b);
    if (columns[name]) kept.sort((a, b) => order(at(name, a), at(name, b)));
    const sorted = down ? "descending" : "ascending";
    for (const th of $("rows").querySelectorAll("th")) th.ariaSort = th.firstChild.id === `sort-${name}` ? sorted : null;
    page = 0;
    lines();
  }
  function lines() {
    const shownRows = kept.slice(page * PAGE, (page + 1) * PAGE);
    const range = `${page * PAGE + 1} to ${page * PAGE + shownRows.length} of ${kept.length} rows`;
    $("count").textContent = kept.length ? range : "no row fits the filters";
    $("back").disabled = !page;
    $("next").disabled = (page + 1) * PAGE >= kept.length;
    const td = (column, row) => tag("td", { className: column.words ? "" : "n" }, written(cell(column, row)));
    const line = (row) => tag("tr", {}, ...visible.map((column) => td(column, row)));
    $("rows").tBodies[0].replaceChildren(...shownRows.map(line));
  }
  function head() {
    const titles = visible.map(({ name, heading, words }) => {
      const button = tag("button", { type: "button", id: `sort-${name}` }, heading);
      button.onclick = () => {
        keep("sort", (state.get("sort") ?? "ms_median") === name ? `${name}-` : name);
        filter();
      };
      return tag("th", { scope: "col", className: words ? "" : "n" }, button);
    });
    const filters = visible.map(({ name, heading, words }) => {
      const value = state.get(`f-${name}`) ?? "";
      const box = tag("input", { id: `filter-${name}`, ariaLabel: `filter ${heading}`, value });
      box.placeholder = words ? "text" : "8, <8";
      box.oninput = () => {
        keep(`f-${name}`, box.value.trim());
        filter();
      };
      return tag("td", {}, box);
    });
    $("rows").tHead.replaceChildren(tag("tr", {}, ...titles), tag("tr", { className: "filters" }, ...filters));
    kernels();
  }
  function kernels(only = state.get("only"), hide = state.get("hide")) {
    keep("only", only);
    keep("hide", hide);
    const names = columns.implementation.words;
    $("kernel").replaceChildren(...names.map((name) => new Option((hidden(name) ? "(hidden) " : "") + name, name)));
    $("kernel").value = only || (names.find((name) => !hidden(name)) ?? names[0]);
    filter();
    draw();
  }
  $("only").onclick = () => kernels($("kernel").value, "");
  $("hide").onclick = () => {
    const names = (state.get("hide") ?? "").split("\n");
    kernels("", [...new Set([...names, $("kernel").value])].join("\n").trim());
  };
  $("clear").onclick = () => {
    for (const name of [...state.keys()]) if (/^(f-|only$|hide$|sort$)/.test(name)) state.delete(name);
    head();
  };
  $("back").onclick = () => (page--, lines());
  $("next").onclick = () => (page++, lines());
  $("csv").onclick = () => {
    const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : (value ?? ""));
    const table = [data.rows.map(({ heading }) => heading), ...kept.map((row) => data.rows.map((column) => cell(column, row)))];
    const lines = table.map((line) => `${line.map(quoted).join(",")}\n`);
    const href = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
    tag("a", { href, download: "rows.csv" }).click();
  };

  // --- folds
  function command(text) {
    const button = tag("button", { type: "button" }, "copy");
    const code = tag("code", {}, ...text.split(" ").flatMap((word, n) => [n ? " " : "", tag("span", {}, word)]));
    button.onclick = async () => {
      getSelection().selectAllChildren(code); // what is left to copy by hand where the browser forbids it
      await navigator.clipboard?.writeText(text).then(() => (button.textContent = "copied"), () => {});
    };
    return tag("p", { className: "command" }, code, button);
  }
  for (const { folders, facts } of data.machines) $("machines").append(list([["results", folders.join(", ")], ...facts]));
  for (const [text, says] of data.commands) $("commands").append(command(text), tag("p", { className: "muted" }, says));
  for (const fold of document.querySelectorAll("details")) {
    fold.open = (state.get("open") ?? "").split(" ").includes(fold.id);
    fold.ontoggle = () => {
      keep("open", [...document.querySelectorAll("details[open]")].map(({ id }) => id).join(" "));
      draw();
    };
  }

  select();
  head();
  document.documentElement.dataset.theme = theme();
  document.head.append(tag("script", { textContent: await unpack("plotly") }));
  paint();
  document.documentElement.dataset.ready = "yes";
})();
