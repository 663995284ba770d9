"use strict";
// Draws each plot from its description. Colours are named "@ink", "@s0", "@s0/0.2" there, so that
// a change between light and dark is a matter of naming them again.
(function () {
  const PLOTS = JSON.parse(document.getElementById("plots").textContent);
  const THEMES = JSON.parse(document.getElementById("themes").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const touch = matchMedia("(pointer: coarse)");
  const button = document.getElementById("theme");
  let chosen = null;

  function themeName() {
    return chosen || (prefersDark.matches ? "dark" : "light");
  }

  function colour(name, theme) {
    const [role, alpha] = name.slice(1).split("/");
    const found = role[0] === "s" && !(role in theme)
      ? theme.series[Number(role.slice(1)) % theme.series.length] : theme[role];
    if (!alpha) return found;
    const part = (from) => parseInt(found.slice(from, from + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  }

  function painted(value, theme) {
    if (typeof value === "string") return value[0] === "@" ? colour(value, theme) : value;
    if (Array.isArray(value)) return value.map((each) => painted(each, theme));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, theme)]));
    }
    return value;
  }

  function draw(key) {
    const place = document.getElementById("plot-" + key);
    const plot = painted(PLOTS[key], THEMES[themeName()]);
    const layout = plot.layout;
    if (narrow.matches) {
      layout.font.size = 11;
      layout.margin = { l: 8, r: 10, t: 40, b: 8 };
      layout.legend.font = { size: 10.5 };
      if (layout.meta.short.length) layout.xaxis.ticktext = layout.meta.short;
      // There is no room for words beside the points: a touch shows them; only the star keeps its.
      for (const each of plot.data) {
        if (each.mode === "markers+text" && each.marker.symbol !== "star") each.mode = "markers";
      }
      const named = plot.data.filter((each) => each.showlegend !== false).length;
      // A thick line makes every row of a legend higher.
      const row = plot.data.some((each) => each.line && each.line.width > 10) ? 31 : 21;
      place.style.height = 300 + row * named + "px";
      layout.legend.maxheight = row * named + 20;
    } else {
      const rows = Math.ceil(plot.data.length / 4);
      place.style.height = rows > 3 ? 440 + 22 * (rows - 3) + "px" : "";
      layout.legend.maxheight = 22 * rows + 60;
    }
    // A finger that moves over a plot scrolls the page; there are buttons to zoom.
    layout.dragmode = touch.matches ? false : "zoom";
    return Plotly.react(place, plot.data, layout, {
      responsive: true, displaylogo: false, scrollZoom: false,
      displayModeBar: touch.matches ? true : "hover",
      modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
      toImageButtonOptions: { filename: key, format: "png", scale: 2 },
    });
  }

  function drawAll() {
    const name = themeName();
    const theme = THEMES[name];
    for (const role of ["ground", "panel", "ink", "soft", "grid", "accent", "doubt"]) {
      document.documentElement.style.setProperty("--" + role, theme[role]);
    }
    document.documentElement.style.colorScheme = name;
    button.textContent = name === "dark" ? "Light colours" : "Dark colours";
    return Promise.all(Object.keys(PLOTS).map(draw));
  }

  button.addEventListener("click", function () {
    chosen = themeName() === "dark" ? "light" : "dark";
    drawAll();
  });
  prefersDark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);
  button.hidden = false;
  drawAll().then(function () { document.documentElement.dataset.drawn = "yes"; });
})();
