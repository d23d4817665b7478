"use strict";
(async () => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const hidden = new Set((state.get("hide") || "").split(",").filter(Boolean));
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const phone = matchMedia("(pointer: coarse)").matches;
  const drawn = new Set();
  let printing = false;

  // --- theme: the system's unless the reader, or the address (#theme=dark), says otherwise
  const dark = () => !printing && (state.get("theme") || (prefersDark.matches ? "dark" : "light")) === "dark";
  function paint() {
    root.dataset.theme = dark() ? "dark" : "light";
    drawn.forEach(draw);
  }
  function remember() {
    const kept = Object.entries({ theme: state.get("theme"), hide: [...hidden].join(",") }).filter(([, value]) => value);
    history.replaceState(null, "", kept.length ? "#" + kept.map((pair) => pair.join("=")).join("&") : location.pathname);
  }
  document.getElementById("theme").onclick = () => {
    state.set("theme", dark() ? "light" : "dark");
    remember();
    paint();
  };
  prefersDark.addEventListener("change", paint);
  paint();

  // --- what is large travels compressed
  async function unpack(id) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  const payload = JSON.parse(await unpack("payload"));

  // --- figures: drawn when they come near the window, and all of them before printing
  function draw(div) {
    if (!window.Plotly) return;
    const light = JSON.stringify(payload.plots[div.dataset.plot]);
    const plot = JSON.parse(dark() ? light.replace(/#[0-9a-f]{6}/g, (colour) => payload.dark[colour] || colour) : light);
    for (const trace of plot.data)
      trace.visible = !trace.meta.length || trace.meta.some((name) => !hidden.has(name));
    if (div.clientWidth < 480) breakLabels(plot);
    plot.layout.dragmode = phone ? false : "zoom";
    plot.layout.uirevision = "kept"; // a zoom stays when colours or kernels change
    if (printing) Object.assign(plot.layout, { width: div.clientWidth, height: 0.76 * plot.layout.height });
    div.style.height = `${plot.layout.height}px`;
    drawn.add(div);
    Plotly.react(div, plot.data, plot.layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: phone ? false : "hover",
      modeBarButtons: [["toImage", "resetScale2d"]], // not the one that sends the chart to a server
      toImageButtonOptions: { format: "svg", filename: div.dataset.plot },
    });
    div.removeAllListeners("plotly_hover");
    div.on("plotly_hover", ({ points, event }) => show(points[0], event));
    div.on("plotly_unhover", () => (card.hidden = true));
  }

  // The names of a ranking take two lines where there is little room: "SDPA (32×128)".
  function breakLabels({ data, layout }) {
    if (!layout.yaxis.categoryarray) return;
    const broken = (name) => name.replace(" (", "<br>(");
    layout.yaxis.categoryarray = layout.yaxis.categoryarray.map(broken);
    layout.yaxis.tickfont.size = 10;
    for (const trace of data) trace.y = trace.y.map(broken);
  }

  // --- what hovering shows
  const card = document.getElementById("card");
  function tag(name, text, className) {
    const element = document.createElement(name);
    element.textContent = text;
    if (className) element.className = className;
    return element;
  }
  function show(point, event) {
    const about = payload.cards[point.customdata];
    if (!about) return;
    const size = tag("p", "", "size");
    size.innerHTML = about.size; // made of numbers and escaped words
    const facts = document.createElement("table");
    for (const [label, value, source, note] of about.facts) {
      const line = facts.insertRow();
      line.append(tag("td", label), tag("td", value), tag("td", `${source}, note ${note}`));
    }
    card.replaceChildren(tag("b", about.title), size, facts);
    for (const remark of about.remarks) card.append(tag("p", remark, "flag"));
    card.hidden = false;
    const { width, height } = card.getBoundingClientRect();
    const touch = event.touches?.[0] || event.changedTouches?.[0] || event;
    const right = touch.clientX + 18 + width < innerWidth;
    card.style.left = Math.max(8, right ? touch.clientX + 18 : touch.clientX - width - 18) + "px";
    card.style.top = Math.max(8, Math.min(touch.clientY - height / 2, innerHeight - height - 8)) + "px";
  }
  addEventListener("scroll", () => (card.hidden = true), { passive: true });

  // --- the filter by kernel acts on figures, legends and tables
  const names = [...new Set(all("[data-toggle]").map((button) => button.dataset.toggle))];
  function filter() {
    for (const button of all("[data-toggle]")) button.setAttribute("aria-pressed", !hidden.has(button.dataset.toggle));
    const rules = [...hidden].filter((name) => names.includes(name)).map((name) => `tr[data-kernel="${CSS.escape(name)}"]`);
    document.getElementById("filtered").textContent = rules.length ? `${rules} { display: none }` : "";
    drawn.forEach(draw);
  }
  function changed() {
    remember();
    filter();
  }
  for (const button of all("[data-toggle]")) {
    const name = button.dataset.toggle;
    button.onclick = () => {
      hidden.delete(name) || hidden.add(name);
      changed();
    };
    button.ondblclick = () => {
      hidden.clear();
      names.filter((other) => other !== name).forEach((other) => hidden.add(other));
      changed();
    };
  }
  document.querySelector("[data-all]").onclick = () => {
    hidden.clear();
    changed();
  };

  // --- tables
  for (const table of all("table.sortable"))
    all("th", table).forEach((heading, column) => {
      heading.onclick = () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = ({ cells }) => cells[column].dataset.v ?? cells[column].textContent;
        const compare = (a, b) => (key(a) === "") - (key(b) === "") || key(a).localeCompare(key(b), "en", { numeric: true });
        const sign = down ? -1 : 1;
        table.tBodies[0].append(
          ...[...table.rows].slice(1).sort((a, b) => sign * (parseFloat(key(a)) - parseFloat(key(b)) || compare(a, b))),
        );
      };
    });
  for (const button of all("[data-copy]"))
    button.onclick = async () => {
      const command = button.previousElementSibling;
      getSelection().selectAllChildren(command); // what is left to copy by hand where the browser forbids it
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
    };
  for (const button of all("[data-csv]"))
    button.onclick = () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([payload.csv[button.dataset.csv]], { type: "text/csv" }));
      link.download = "rows.csv";
      link.click();
    };

  filter();

  const code = document.createElement("script");
  code.textContent = await unpack("plotly");
  document.head.append(code);

  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries)
        if (isIntersecting && !target.data) draw(target);
    },
    { rootMargin: "800px" },
  );
  all(".plot").forEach((div) => near.observe(div));

  // --- paper is light, holds every figure, and is narrower than the window
  function print(now) {
    printing = now;
    all(".plot").forEach((div) => drawn.add(div));
    paint();
  }
  matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
