/** The similarity over the layers as a drawing, as wide as there is room, and the same as a table behind it. */

import { draw, make, score, table } from "./elements.js";

const HEIGHT = 280;
const EDGE = { left: 44, right: 18, top: 18, bottom: 42 };

/** points: [{ layer, similarity }]; `own` are the layers that the encoder reads. */
export function curve(points, own) {
  const values = points.map((point) => point.similarity);
  const summary = `Similarity by layer: from ${score(values[0])} at layer ${points[0].layer} to ${score(values.at(-1))} at ` +
    `layer ${points.at(-1).layer}; lowest ${score(Math.min(...values))}, highest ${score(Math.max(...values))}.`;
  const svg = draw("svg", { class: "curve", role: "img", "aria-label": summary, height: HEIGHT });
  const reading = make("p", { class: "reading", "aria-hidden": "true" });
  const resting = "Point at the curve to read a layer.";
  reading.textContent = resting;
  const frame = make("div", { class: "drawing" }, svg, reading);
  let scale = null;

  new ResizeObserver(() => {
    const width = Math.floor(frame.clientWidth);
    if (!width || width === scale?.width) return;
    scale = scaled(points, width);
    svg.setAttribute("width", width);
    svg.replaceChildren(...axes(points, scale), ...line(points, scale, own));
  }).observe(frame);

  svg.addEventListener("pointermove", (event) => {
    const where = event.clientX - svg.getBoundingClientRect().left;
    const near = points.reduce((best, one) => (Math.abs(scale.x(one) - where) < Math.abs(scale.x(best) - where) ? one : best));
    svg.querySelector(".pointer")?.remove();
    svg.append(draw("circle", { class: "pointer", cx: scale.x(near), cy: scale.y(near.similarity), r: 6 }));
    reading.textContent = `Layer ${near.layer}: ${score(near.similarity)}`;
  });
  svg.addEventListener("pointerleave", () => {
    svg.querySelector(".pointer")?.remove();
    reading.textContent = resting;
  });

  const rows = points.map((point) => [`${point.layer}${own.includes(point.layer) ? " (read)" : ""}`, score(point.similarity)]);
  return make("div", {}, frame,
    make("details", { class: "as-table" }, make("summary", {}, "The same as a table"),
      table("Similarity by layer", ["Layer", "Similarity"], rows)));
}

/** Tenths around the values, and never so close that noise looks like a mountain. */
function scaled(points, width) {
  const values = points.map((point) => point.similarity);
  let low = Math.floor(Math.min(...values) * 10 - 0.01) / 10;
  const high = Math.min(1, Math.ceil(Math.max(...values) * 10) / 10);
  if (high - low < 0.4) low = high - 0.4;
  const [first, last] = [points[0].layer, points.at(-1).layer];
  const across = width - EDGE.left - EDGE.right;
  const down = HEIGHT - EDGE.top - EDGE.bottom;
  return {
    width, low, high,
    x: (point) => EDGE.left + (last === first ? across / 2 : (across * (point.layer - first)) / (last - first)),
    y: (value) => EDGE.top + (down * (high - value)) / (high - low),
  };
}

function axes(points, scale) {
  const step = scale.high - scale.low > 1 ? 0.5 : scale.high - scale.low > 0.5 ? 0.2 : 0.1;
  const parts = [];
  for (let value = scale.high; value > scale.low - 1e-9; value -= step) {
    const y = scale.y(value);
    parts.push(draw("line", { class: "grid", x1: EDGE.left, x2: scale.width - EDGE.right, y1: y, y2: y }));
    const shown = (Math.abs(value) < 1e-9 ? 0 : value).toFixed(1).replace("-", "−");
    parts.push(draw("text", { x: EDGE.left - 10, y: y + 4, "text-anchor": "end" }, shown));
  }
  const room = (scale.width - EDGE.left - EDGE.right) / 34;
  const every = [1, 2, 5, 10, 20, 50].find((gap) => points.length / gap <= room) ?? 100;
  points.filter((_, place) => place % every === 0).forEach((point) => {
    const label = { x: scale.x(point), y: HEIGHT - EDGE.bottom + 20, "text-anchor": "middle" };
    parts.push(draw("text", label, String(point.layer)));
  });
  const middle = (EDGE.left + scale.width - EDGE.right) / 2;
  parts.push(draw("text", { x: middle, y: HEIGHT - 4, "text-anchor": "middle" }, "layer"));
  return parts;
}

function line(points, scale, own) {
  const places = points.map((point) => `${scale.x(point).toFixed(1)},${scale.y(point.similarity).toFixed(1)}`);
  const parts = [];
  const read = points.filter((point) => own.includes(point.layer));
  if (read.length === 1) {
    const x = scale.x(read[0]);
    const right = x > scale.width / 2;
    parts.push(draw("line", { class: "own", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    const label = { class: "own-label", x: x + (right ? -8 : 8), y: HEIGHT - EDGE.bottom - 8, "text-anchor": right ? "end" : "start" };
    parts.push(draw("text", label, `read at layer ${read[0].layer}`));
  }
  parts.push(draw("polyline", { class: "line", points: places.join(" ") }));
  for (const point of points) {
    const dot = { class: read.includes(point) ? "dot own-dot" : "dot", r: read.includes(point) ? 5.5 : 3 };
    parts.push(draw("circle", { ...dot, cx: scale.x(point), cy: scale.y(point.similarity) }));
  }
  return parts;
}
