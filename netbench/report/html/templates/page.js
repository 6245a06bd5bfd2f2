"use strict";
// Draws the charts, follows the theme, switches between views, and zooms timelines.
(() => {
  const embed = window.netbenchEmbed;
  const data = JSON.parse(document.getElementById("charts").textContent);
  const charts = {};
  const SIGNALS = ["ink", "muted", "rule", "paper", "pale", "warm"];
  const noRequests = { load: () => Promise.reject(new Error("this page loads nothing")), sanitize: () => Promise.reject(new Error("this page links nothing")) };

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return SIGNALS.map((name) => [name, style.getPropertyValue("--" + name).trim()]);
  }

  // -- theme ----------------------------------------------------------------------------------------

  function repaint() {
    const found = colours();
    for (const { view } of Object.values(charts)) {
      for (const [name, value] of found) view.signal(name, value);
      view.runAsync();
    }
  }

  function choose(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
    }
    repaint();
  }

  for (const button of document.querySelectorAll("[data-theme-choice]")) {
    button.addEventListener("click", () => choose(button.dataset.themeChoice));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  // -- tooltips -------------------------------------------------------------------------------------

  const tip = document.getElementById("tip");

  function showTip(handler, event, item, value) {
    if (value === null || value === undefined || value === "") {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren();
    for (const [name, text] of Object.entries(value)) {
      const line = document.createElement("div");
      for (const part of [name, text]) {
        const span = document.createElement("span");
        span.textContent = part;
        line.append(span);
      }
      tip.append(line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (below + box.height > innerHeight ? event.clientY - box.height - 12 : below) + "px";
  }

  // -- views ----------------------------------------------------------------------------------------

  function seconds(value) {
    if (value < 1e-9) return "0 s";
    if (value >= 10) return value.toFixed(2) + " s";
    return value >= 1 ? value.toFixed(3) + " s" : (1000 * value).toPrecision(3) + " ms";
  }

  function unfold(timeline) {
    const slices = [];
    const { rows, tick_s, parts } = timeline;
    for (const [row, kind, thin, pairs] of timeline.slices) {
      let start = 0;
      for (let i = 0; i < pairs.length; i += 2) {
        start += pairs[i];
        const s = start * tick_s;
        const e = s + pairs[i + 1] * tick_s;
        const part = parts.find((each) => each.from <= s + tick_s && s < each.to);
        slices.push({
          rank: rows[row], kind, thin: Boolean(thin), s, e, from: seconds(s), lasts: seconds(e - s),
          part: part ? part.name + (part.repeat === 1 ? "" : ", " + part.repeat + " times") : "-",
        });
      }
    }
    return slices;
  }

  function show(key, index) {
    const chart = charts[key];
    const chosen = chart.views[index];
    if (!chosen) return chart.view.runAsync();
    if (chosen.timeline) chart.view.data("slices", unfold(chosen.timeline));
    for (const [name, values] of Object.entries(chosen.data || {})) chart.view.data(name, values);
    for (const [name, value] of Object.entries(chosen.signals || {})) chart.view.signal(name, value);
    document.getElementById(key).setAttribute("aria-label", chosen.alt);
    chart.end = chosen.signals ? chosen.signals.to_s : 0;
    if (chart.report) chart.report();
    return chart.view.runAsync();
  }

  for (const select of document.querySelectorAll("[data-choice]")) {
    select.addEventListener("change", () => show(select.dataset.choice, select.selectedIndex));
  }

  // -- zoom -----------------------------------------------------------------------------------------

  function zoomable(key) {
    const chart = charts[key];
    const element = document.getElementById(key);
    const tools = document.querySelector('[data-zoom="' + key + '"]');
    element.classList.add("zooms");
    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.setAttribute("aria-roledescription", "timeline to zoom");
    const span = () => [chart.view.signal("from_s"), chart.view.signal("to_s")];

    chart.report = () => {
      const [from, to] = span();
      tools.querySelector("output").textContent = seconds(from) + " to " + seconds(to);
    };

    function set(from, to) {
      const least = chart.end / 1e4;
      const length = Math.min(chart.end, Math.max(least, to - from));
      const start = Math.min(Math.max(0, from), chart.end - length);
      chart.view.signal("from_s", start).signal("to_s", start + length).runAsync();
      chart.report();
    }

    function scale(factor) {
      const [from, to] = span();
      const middle = (from + to) / 2;
      set(middle - ((to - from) * factor) / 2, middle + ((to - from) * factor) / 2);
    }

    function move(part) {
      const [from, to] = span();
      set(from + part * (to - from), to + part * (to - from));
    }

    const actions = {
      in: () => scale(0.5), out: () => scale(2), left: () => move(-0.25), right: () => move(0.25),
      all: () => set(0, chart.end),
    };
    for (const button of tools.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => actions[button.dataset.do]());
    }
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
    element.addEventListener("keydown", (event) => {
      const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
      if (!action) return;
      event.preventDefault();
      actions[action]();
    });

    let begun = null;
    const band = document.createElement("div");
    band.className = "band";
    function place(event) {
      const box = element.querySelector("canvas, svg").getBoundingClientRect();
      const origin = chart.view.origin()[0];
      return { x: event.clientX - box.left, part: (event.clientX - box.left - origin) / chart.view.width() };
    }
    element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      begun = place(event);
      element.append(band);
      band.style.width = "0";
    });
    element.addEventListener("pointermove", (event) => {
      if (!begun) return;
      const x = place(event).x;
      band.style.left = Math.min(x, begun.x) + "px";
      band.style.width = Math.abs(x - begun.x) + "px";
    });
    addEventListener("pointerup", (event) => {
      if (!begun) return;
      const ends = [begun.part, place(event).part].map((part) => Math.min(1, Math.max(0, part)));
      const moved = Math.abs(place(event).x - begun.x);
      begun = null;
      band.remove();
      if (moved < 5) return;
      const [from, to] = span();
      set(from + Math.min(...ends) * (to - from), from + Math.max(...ends) * (to - from));
    });
    element.addEventListener("pointercancel", () => { begun = null; band.remove(); });
    element.addEventListener("dblclick", () => actions.all());
    chart.report();
  }

  // -- start ----------------------------------------------------------------------------------------

  async function draw(key) {
    const { spec, views, canvas, zooms } = data[key];
    const container = document.getElementById(key);
    const values = Object.fromEntries(colours());
    for (const signal of spec.signals) if (signal.name in values) signal.value = values[signal.name];
    if (views.length && views[0].timeline) {
      spec.data.find((each) => each.name === "slices").values = unfold(views[0].timeline);
    }
    const { view } = await embed(container, spec, {
      mode: "vega", actions: false, defaultStyle: false, hover: true, loader: noRequests, logLevel: 2,
      renderer: canvas ? "canvas" : "svg", tooltip: showTip,
    });
    charts[key] = { view, views, end: zooms ? views[0].signals.to_s : 0 };
    if (zooms) zoomable(key);
    container.dataset.drawn = "true";
  }

  async function start() {
    for (const key of Object.keys(data)) {
      await draw(key);
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.ready = "true";
  }

  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  // A printed page has the width of paper: charts follow it, and return.
  for (const event of ["beforeprint", "afterprint"]) {
    addEventListener(event, () => dispatchEvent(new Event("resize")));
  }
  start();
})();
