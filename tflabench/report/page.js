"use strict";
// Shows what the payload holds. All texts become text nodes; nothing is computed but what is picked, sorted and filtered.
(async () => {
  const $ = (id) => document.getElementById(id);
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const tag = (name, text = "", more = {}) => Object.assign(document.createElement(name), { textContent: text }, more);
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

  // --- rows: cell(column, row) is a word, a number or null
  const columns = Object.fromEntries(data.rows.map((column) => [column.name, column]));
  const total = data.rows[0].values.length;
  const cell = ({ words, values }, row) => (words ? words[values[row]] : values[row]);
  const at = (name, row) => cell(columns[name], row);
  const digits = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(4));
  const written = (value) => (value === null ? "" : typeof value === "number" ? digits(value) : value);
  const hidden = (name) => (state.get("only") ?? name) !== name || (state.get("hide") ?? "").split("\n").includes(name);

  // --- theme
  const theme = () => state.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  function paint() {
    document.documentElement.dataset.theme = theme();
    $("theme").textContent = theme() === "dark" ? "light" : "dark";
    draw();
  }
  $("theme").onclick = () => {
    keep("theme", theme() === "dark" ? "light" : "dark");
    paint();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  // --- selection: each selector offers what charts have that match those before it
  function picks(name, options, label = name) {
    const box = tag("select", "", { id: `pick-${name}` });
    box.append(...options.map((option) => tag("option", option, { value: option })));
    const line = tag("label", label);
    line.append(box);
    return [line, box];
  }
  function select() {
    let left = data.charts;
    $("select").replaceChildren();
    for (const [name, label] of Object.entries(data.selectors)) {
      const options = [...new Set(left.map((chart) => chart[name]))];
      const [line, box] = picks(name, options, label);
      box.value = options.includes(state.get(name)) ? state.get(name) : options[0];
      box.onchange = () => {
        keep(name, box.value);
        select();
        $(`pick-${name}`).focus();
        draw();
      };
      line.hidden = options.length < 2 && name === "results";
      left = left.filter((chart) => chart[name] === box.value);
      $("select").append(line);
    }
    return (shown = left[0]);
  }

  // --- chart
  let shown;
  const narrow = matchMedia("(max-width: 700px)");
  narrow.addEventListener("change", () => draw());
  function figure(plot) {
    const text = JSON.stringify(plot);
    const dark = theme() === "dark";
    const found = JSON.parse(dark ? text.replace(/#[0-9a-f]{6}/g, (ink) => data.dark[ink] ?? ink) : text);
    const { layout } = found;
    const style = getComputedStyle(document.body);
    const line = style.getPropertyValue("--line");
    for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { gridcolor: line, linecolor: line });
    const font = { color: style.color, family: style.fontFamily, size: 12 };
    Object.assign(layout, { font, paper_bgcolor: "transparent", plot_bgcolor: "transparent" });
    if (narrow.matches) {
      Object.assign(layout.margin, { r: 12, l: 48 });
      Object.assign(layout.legend, { orientation: "h", y: -0.25 });
      for (const axis of [layout.xaxis, layout.yaxis]) axis.tickfont = { size: 10 };
    }
    for (const trace of found.data) trace.visible = !(trace.meta && hidden(trace.meta));
    return found;
  }
  async function plotted(id, plot) {
    const { data: traces, layout } = figure(plot);
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
  function card(row, x, y) {
    if (row === undefined) return;
    const size = `${at("pass", row)}, T ${at("seq_len", row)}, batch ${at("batch", row)}, ${at("heads", row)} heads, `;
    const facts = tag("dl");
    const names = "chunk_size ms_median ms_p20 ms_p80 model_ms_lower percent_of_bound tflops peak_gib rel_error".split(" ");
    for (const column of names.map((name) => columns[name]))
      if (cell(column, row) !== null) facts.append(tag("dt", column.heading), tag("dd", written(cell(column, row))));
    const said = [at("status", row) === "ok" ? "" : at("status", row), at("remarks", row)].filter(Boolean).join(": ");
    const where = `${size}d_qk ${at("d_qk", row)}, d_hv ${at("d_hv", row)}, ${at("dtype", row)}`;
    $("card").replaceChildren(tag("b", at("title", row)), tag("p", where), facts, tag("p", said, { className: "flag" }));
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

  // --- look up
  const { lookup } = data;
  const fields = { seq_len: "T", batch: "batch", heads: "heads", d_qk: "d_qk", d_hv: "d_hv" };
  const passes = { forward: "fw", "forward + backward": "fwbw" };
  const asked = (name) => $(`pick-my-${name}`)?.value ?? $(`my-${name}`).value.trim();
  function form() {
    const keys = Object.keys({ ...lookup.modelled, ...lookup.measured }).map((key) => key.split("|"));
    const first = keys[0] ?? ["", "exp,sig", "fwbw", "bfloat16", "8192", "8", "8", "256", "512"];
    const dtypes = [...new Set([first[3], "bfloat16", "float16", "float32", ...columns.dtype.words])];
    const choices = { gpu: Object.keys(lookup.commands), pass: Object.keys(passes), dtype: dtypes, gate: lookup.gates };
    for (const [name, options] of Object.entries(choices)) {
      const [line, box] = picks(`my-${name}`, options, name === "gpu" ? "GPU" : name);
      box.value = options.includes(state.get(`my-${name}`)) ? state.get(`my-${name}`) : options[0];
      if (name === "pass") box.value = state.get("my-pass") ?? (first[2] === "fw" ? "forward" : "forward + backward");
      $("shape").append(line);
    }
    Object.entries(fields).forEach(([name, label], n) => {
      const line = tag("label", label);
      const known = tag("datalist", "", { id: `known-${name}` });
      const values = [...new Set(keys.map((key) => key[4 + n]))].sort((a, b) => a - b);
      known.append(...values.map((value) => tag("option", "", { value })));
      const box = tag("input", "", { id: `my-${name}`, inputMode: "numeric", value: state.get(`my-${name}`) ?? first[4 + n] });
      box.setAttribute("list", known.id);
      line.append(box, known);
      $("shape").append(line);
    });
    $("shape").oninput = () => {
      for (const box of $("shape").querySelectorAll("select, input")) keep(box.id.replace("pick-", ""), box.value);
      answer();
    };
    $("shape").onsubmit = (event) => event.preventDefault();
  }
  function command(text) {
    const line = tag("p", "", { className: "command" });
    const button = tag("button", "copy", { type: "button" });
    const code = tag("code");
    code.append(...text.split(" ").flatMap((word, n) => [n ? " " : "", tag("span", word)]));
    button.onclick = async () => {
      getSelection().selectAllChildren(code); // what is left to copy by hand where the browser forbids it
      await navigator.clipboard?.writeText(text).then(() => (button.textContent = "copied"), () => {});
    };
    line.append(code, button);
    return line;
  }
  function answer() {
    const numbers = Object.keys(fields).map(asked);
    const wrong = Object.keys(fields).find((name) => !/^[1-9]\d{0,8}$/.test(asked(name)));
    if (wrong) return $("answer").replaceChildren(tag("p", `${fields[wrong]} must be a whole number above 0`, { className: "flag" }));
    const [gpu, gate, pass, dtype] = [asked("gpu"), asked("gate"), passes[asked("pass")], asked("dtype")];
    const key = [gpu, gate, pass, dtype, ...numbers].join("|");
    const found = [lookup.measured[key], lookup.modelled[key]].filter(Boolean);
    const parts = found.flatMap((best, n) => told(best, n === 0));
    const options = Object.keys(fields).map((name, n) => `--${name.replace("_", "-")} ${numbers[n]}`).join(" ");
    const line = `${lookup.commands[gpu]} --pass ${pass} --dtype ${dtype} --gate ${gate} ${options}`;
    const why = found.length ? "The same, with all choices:" : "No row and no point of the grid has this shape. Ask";
    $("answer").replaceChildren(...parts, tag("p", why, { className: found.length ? "muted" : "" }), command(line));
  }
  function told(best, first) {
    if (typeof best === "string") return [tag("p", best, { className: "flag" })];
    const table = tag("table", "", { className: first ? "best" : "second" });
    table.insertRow().append(...["", "L", "a call", "memory"].map((name) => tag("th", name)));
    best.forEach((one, n) => {
      const line = table.insertRow();
      line.append(...[one.kernel, one.chunk, one.ms, one.memory].map((words) => tag("td", words)));
      if (n) line.className = "muted";
    });
    return [tag("p", best[0].source, { className: "source" }), table];
  }

  // --- all rows: 50 at a time, one row of filters
  const PAGE = 50;
  let page = 0;
  let kept = [];
  const visible = data.rows.filter(({ name, values, words }) =>
    name !== "implementation" && (words ? words.length > 1 || name === "title" : values.some((value) => value !== null)));
  function passing({ words, name, values }) {
    const wanted = state.get(`f-${name}`);
    if (!wanted) return null;
    const [, sign, number] = /^(<=|>=|<|>)?\s*(.*)$/.exec(wanted);
    const bound = Number(number);
    const tests = { "<": (v) => v < bound, ">": (v) => v > bound, "<=": (v) => v <= bound, ">=": (v) => v >= bound };
    if (!words) return (row) => values[row] !== null && (tests[sign] ?? ((v) => v === bound || written(v) === number))(values[row]);
    const fits = words.map((word) => word.toLowerCase().includes(wanted.toLowerCase()));
    return (row) => fits[values[row]];
  }
  function filter() {
    const tests = visible.map(passing).filter(Boolean);
    const off = columns.implementation.words.map(hidden);
    const { values } = columns.implementation;
    kept = [...Array(total).keys()].filter((row) => !off[values[row]] && tests.every((test) => test(row)));
    const [, name, down] = /^(.*?)(-?)$/.exec(state.get("sort") ?? "");
    if (columns[name]) {
      const rank = columns[name].words ? columns[name].words.map((_, n) => n).sort((a, b) => columns[name].words[a].localeCompare(columns[name].words[b])) : null;
      const place = rank && rank.reduce((places, word, n) => ((places[word] = n), places), []);
      const key = (row) => (rank ? place[columns[name].values[row]] : columns[name].values[row]);
      const keys = kept.map((row) => [key(row), row]);
      keys.sort(([a], [b]) => (a === null) - (b === null) || (down ? b - a : a - b));
      kept = keys.map(([, row]) => row);
    }
    page = 0;
    lines();
  }
  function lines() {
    const shownRows = kept.slice(page * PAGE, (page + 1) * PAGE);
    $("count").textContent = kept.length ? `${page * PAGE + 1} to ${page * PAGE + shownRows.length} of ${kept.length} rows` : "no row fits the filters";
    $("back").disabled = !page;
    $("next").disabled = (page + 1) * PAGE >= kept.length;
    $("rows").tBodies[0].replaceChildren(
      ...shownRows.map((row) => {
        const line = tag("tr");
        line.append(...visible.map((column) => tag("td", written(cell(column, row)), { className: column.words ? "" : "n" })));
        return line;
      }),
    );
  }
  function refilter() {
    head();
    filter();
    draw();
  }
  function head() {
    const [titles, filters] = [tag("tr"), tag("tr", "", { className: "filters" })];
    for (const { name, heading, words } of visible) {
      const th = tag("th", "", { scope: "col", className: words ? "" : "n" });
      const button = tag("button", heading, { type: "button", id: `sort-${name}` });
      const sort = state.get("sort");
      if (sort === name || sort === `${name}-`) th.ariaSort = sort === name ? "ascending" : "descending";
      button.onclick = () => {
        keep("sort", sort === name ? `${name}-` : name);
        head();
        filter();
        $(`sort-${name}`).focus();
      };
      th.append(button);
      titles.append(th);
      const td = tag("td");
      if (name === "title") td.append(...kernels());
      else {
        const box = tag("input", "", { ariaLabel: `filter ${heading}`, value: state.get(`f-${name}`) ?? "", id: `filter-${name}` });
        box.placeholder = words ? "text" : "8, <8";
        box.oninput = () => {
          keep(`f-${name}`, box.value.trim());
          filter();
        };
        td.append(box);
      }
      filters.append(td);
    }
    $("rows").tHead.replaceChildren(titles, filters);
  }
  function kernels() {
    const box = tag("select", "", { ariaLabel: "kernel", id: "kernel" });
    const names = columns.implementation.words;
    box.append(...names.map((name) => tag("option", (hidden(name) ? "(hidden) " : "") + name, { value: name })));
    box.value = state.get("only") ?? names.find((name) => !hidden(name)) ?? names[0];
    const only = tag("button", "only this", { type: "button", id: "only" });
    only.onclick = () => {
      keep("hide", "");
      keep("only", box.value);
      refilter();
    };
    const hide = tag("button", "hide", { type: "button", id: "hide" });
    hide.onclick = () => {
      keep("only", "");
      keep("hide", [...new Set([...(state.get("hide") ?? "").split("\n"), box.value])].join("\n").trim());
      refilter();
    };
    return [box, only, hide];
  }
  $("clear").onclick = () => {
    for (const name of [...state.keys()]) if (/^(f-|only$|hide$|sort$)/.test(name)) state.delete(name);
    keep("only", "");
    refilter();
  };
  $("back").onclick = () => (page--, lines());
  $("next").onclick = () => (page++, lines());
  $("csv").onclick = () => {
    const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : (value ?? ""));
    const text = [data.rows.map(({ heading }) => quoted(heading)), ...kept.map((row) => data.rows.map((column) => quoted(cell(column, row))))];
    const href = URL.createObjectURL(new Blob([text.map((line) => line.join(",")).join("\n") + "\n"], { type: "text/csv" }));
    tag("a", "", { href, download: "rows.csv" }).click();
  };

  // --- folds
  const heads = ["verdict", "claim", "where", "kernels", "measured, or why not", "would be decided by"];
  const table = [heads, ...data.claims].map((words, n) => {
    const line = tag("tr");
    line.append(...words.map((word) => tag(n ? "td" : "th", word)));
    return line;
  });
  $("claims").append(...table);
  for (const { folders, facts } of data.machines) {
    const list = tag("dl");
    for (const [name, value] of [["results", folders.join(", ")], ...facts]) list.append(tag("dt", name), tag("dd", value));
    $("machines").append(list);
  }
  for (const [text, says] of data.commands) $("commands").append(command(text), tag("p", says, { className: "muted" }));
  for (const fold of document.querySelectorAll("details")) {
    fold.open = (state.get("open") ?? "").split(" ").includes(fold.id);
    fold.ontoggle = () => {
      keep("open", [...document.querySelectorAll("details[open]")].map(({ id }) => id).join(" "));
      draw();
    };
  }

  form();
  answer();
  select();
  head();
  filter();
  document.documentElement.dataset.theme = theme();
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  paint();
  document.documentElement.dataset.ready = "yes";
})();
