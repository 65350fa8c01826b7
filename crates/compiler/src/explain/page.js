"use strict";
for (const box of document.querySelectorAll(".graph")) {
  const svg = box.querySelector("svg");
  const start = svg.getAttribute("viewBox").split(" ").map(Number);
  let view = start.slice();
  const show = () => svg.setAttribute("viewBox", view.join(" "));
  // How many units of the drawing a pixel is.
  const unit = () => Math.max(view[2] / svg.clientWidth, view[3] / svg.clientHeight);
  const fit = () => {
    const width = Math.min(Math.max(start[2], 700), 1600);
    view = [start[0] + (start[2] - width) / 2, start[1], width, Math.min(start[3], 0.4 * width)];
    // As high as what it shows first, up to the style's limit.
    box.style.aspectRatio = `${view[2]} / ${view[3]}`;
    show();
  };
  svg.addEventListener("wheel", (e) => {
    e.preventDefault();
    const factor = Math.exp(e.deltaY * 0.0015);
    const point = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    view = [
      point.x - (point.x - view[0]) * factor,
      point.y - (point.y - view[1]) * factor,
      view[2] * factor,
      view[3] * factor,
    ];
    show();
  }, { passive: false });
  let last = null;
  svg.addEventListener("pointerdown", (e) => { last = [e.clientX, e.clientY]; });
  window.addEventListener("pointerup", () => { last = null; });
  svg.addEventListener("pointermove", (e) => {
    if (!last) return;
    const u = unit();
    view[0] -= (e.clientX - last[0]) * u;
    view[1] -= (e.clientY - last[1]) * u;
    last = [e.clientX, e.clientY];
    show();
  });
  svg.addEventListener("dblclick", fit);
  fit();
}
const info = document.getElementById("info");
const light = (kernel) => {
  for (const n of document.querySelectorAll(".n"))
    n.classList.toggle("lit", kernel !== null && n.dataset.k.split(" ").includes(kernel));
};
for (const n of document.querySelectorAll(".n")) {
  const kernel = n.dataset.k.split(" ")[0];
  n.addEventListener("pointerenter", () => {
    info.textContent = n.querySelector("title").textContent;
    light(kernel || null);
  });
  n.addEventListener("pointerleave", () => light(null));
  n.addEventListener("dblclick", (e) => {
    const row = kernel && document.getElementById("k" + kernel);
    if (!row) return;
    e.stopPropagation();
    for (let d = row; d; d = d.parentElement.closest("details")) d.open = true;
    row.scrollIntoView({ block: "center" });
  });
}
for (const row of document.querySelectorAll("details.k")) {
  row.addEventListener("pointerenter", () => light(row.id.slice(1)));
  row.addEventListener("pointerleave", () => light(null));
}
const tabs = document.querySelectorAll(".tabs button");
for (const tab of tabs)
  tab.addEventListener("click", () => {
    for (const t of tabs) {
      t.classList.toggle("on", t === tab);
      document.getElementById(t.dataset.of).hidden = t !== tab;
    }
  });
