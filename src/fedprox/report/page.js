"use strict";
(async () => {
  const read = (id) => document.getElementById(id).textContent;
  const data = JSON.parse(read("data"));
  const dark = matchMedia("(prefers-color-scheme: dark)");

  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // Plotly takes no CSS variables, so the page's colours are handed over, again whenever they change.
  function colours(light) {
    const isDark = dark.matches && !light;
    const ink = isDark ? "#e8eaed" : "#1c2024";
    const line = isDark ? "#343a40" : "#dfe3e8";
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    return { ink, line, axis, hover: isDark ? "#2a3036" : "#ffffff" };
  }

  function layout(extra, light) {
    const { ink, line, axis, hover } = colours(light);
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      margin: { l: 48, r: 12, t: 30, b: 40 },
      hoverlabel: { bgcolor: hover, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: ink },
      uirevision: "kept",  // hidden curves and zoom survive a change of colours
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
      ...extra,
      xaxis: { ...axis, ...extra.xaxis, title: { standoff: 6, ...extra.xaxis.title } },
      yaxis: { ...axis, ...extra.yaxis },
    };
  }

  const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "sendChartToCloud"] };
  const drawn = [];  // every picture, as a function that draws it again: draw(printing)

  // On paper a picture gets the size of its card on an A4 page, which is not yet known while the screen's applies.
  function size(element, printing) {
    if (!printing) return { autosize: true };
    return { autosize: false, height: 260, width: element.closest(".wide") ? 670 : 322 };
  }

  function show(element, figure, printing) {
    const extra = { ...figure.layout, ...size(element, printing) };
    return Plotly.react(element, figure.data, layout(extra, printing), { ...settings, responsive: !printing });
  }

  function draw(element, figure) {
    const again = (printing) => show(element, figure(printing), printing);
    drawn.push(again);
    return again(false);
  }

  function participation(run, light) {
    const names = ["all of its work", "straggler, partial work kept", "dropped"];
    const symbols = ["square", "diamond", "x-thin-open"];
    const { ink } = colours(light);
    const traces = names.map((name, fate) => {
      const chosen = run.fate.flatMap((value, index) => (value === fate ? [index] : []));
      const pick = (key) => chosen.map((index) => run[key][index]);
      const marker = { symbol: symbols[fate], size: 7 };
      if (fate === 2) Object.assign(marker, { color: ink, line: { color: ink, width: 1.2 }, opacity: 0.6 });
      else Object.assign(marker, { color: pick("work"), cmin: 0, cmax: run.epochs, colorscale: "Viridis",
        showscale: fate === 0, colorbar: { title: { text: "epochs" }, thickness: 10 } });
      return { type: "scatter", mode: "markers", name, x: pick("round"), y: pick("device"), marker,
        customdata: chosen.map((index) => [run.work[index], run.steps[index]]),
        hovertemplate: "round %{x}, device %{y}: %{customdata[0]} epochs, %{customdata[1]} steps<extra>" + name + "</extra>" };
    }).filter((trace) => trace.x.length);
    if (traces.length && !traces.some((trace) => trace.marker.showscale) && traces[0].marker.colorscale)
      traces[0].marker.showscale = true;
    return { data: traces, layout: { showlegend: true, hovermode: "closest",
      xaxis: { title: { text: "round" } }, yaxis: { title: { text: "device" } } } };
  }

  try {
    await unpack(read("plotly"));
  } catch (error) {
    for (const element of document.querySelectorAll(".plot"))
      element.textContent = "The pictures need a newer browser (one that has DecompressionStream).";
    return;
  }
  const current = new Map(data.figures.map((figure) => [figure.name, figure]));
  for (const name of current.keys())
    await draw(document.getElementById("plot-" + name), () => current.get(name));

  const picture = document.getElementById("plot-participation");
  if (picture) {
    const choice = document.getElementById("choose-run");
    const chosen = (printing) => participation(data.participation[Number(choice.value)], printing);
    choice.addEventListener("change", () => show(picture, chosen(false), false));
    await draw(picture, chosen);
  }
  const all = (printing) => {
    for (const part of document.querySelectorAll("details")) part.open = printing || part.open;
    drawn.forEach((again) => again(printing));
  };
  dark.addEventListener("change", () => all(false));
  addEventListener("beforeprint", () => all(true));
  addEventListener("afterprint", () => all(false));
  document.documentElement.dataset.drawn = "yes";

  // A live page asks its server for newer data. Text goes in as text, never as markup.
  function write(id, lines) {
    const place = document.getElementById(id);
    place.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
  }

  async function update() {
    let now;
    try {
      const answer = await fetch("data");
      if (!answer.ok) throw new Error(await answer.text());
      now = await answer.json();
    } catch (error) {
      document.getElementById("live-progress").textContent = "No longer updated: " + error.message;
      return;
    }
    if (now.figures.some((figure) => !current.has(figure.name))) return location.reload();
    for (const figure of now.figures) {
      current.set(figure.name, figure);
      await show(document.getElementById("plot-" + figure.name), figure, false);
    }
    document.getElementById("live-about").textContent = now.about;
    document.getElementById("live-progress").textContent = now.progress;
    write("live-verdict", now.verdict);
    write("live-states", now.states);
    setTimeout(update, 1000);
  }
  if (data.live) setTimeout(update, 1000);
})();
