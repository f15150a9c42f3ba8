/** A curve of the similarity over the layers, as wide as the page allows, with the same values as a table. */

import { create, createSvg, formatScore, table } from "./elements.js";

const HEIGHT = 280;
const MARGIN = { left: 44, right: 18, top: 18, bottom: 42 };

const SAME = 0.005;

/**
 * points: [{ layer, similarity }] of the plain states; `encoderLayers` are the layers that the encoder reads, and `own` is
 * the similarity by the encoder, which differs where it has a head or reads several layers.
 */
export function curve(points, encoderLayers, own) {
  const values = points.map((point) => point.similarity);
  const summary = `Similarity by layer: from ${formatScore(values[0])} at layer ${points[0].layer} to ${formatScore(values.at(-1))} at ` +
    `layer ${points.at(-1).layer}; lowest ${formatScore(Math.min(...values))}, highest ${formatScore(Math.max(...values))}.`;
  const svg = createSvg("svg", { class: "curve", role: "img", "aria-label": summary, height: HEIGHT });
  const readout = create("p", { class: "readout", "aria-hidden": "true" });
  const read = points.filter((point) => encoderLayers.includes(point.layer));
  const differs = read.length > 0 && !(read.length === 1 && Math.abs(read[0].similarity - own) < SAME);
  const hint = differs
    ? `The curve compares the plain states of each layer; the encoder computes ${formatScore(own)} from them, with its head. Point at the curve to see the value of a layer.`
    : "Point at the curve to see the value of a layer.";
  readout.textContent = hint;
  const frame = create("div", { class: "chart" }, svg, readout);
  let scale = null;

  new ResizeObserver(() => {
    const width = Math.floor(frame.clientWidth);
    if (!width || width === scale?.width) return;
    scale = makeScale(differs ? [...points, { ...read.at(-1), similarity: own }] : points, width);
    svg.setAttribute("width", width);
    svg.replaceChildren(...axes(points, scale), ...line(points, scale, encoderLayers), ...(differs ? ownMark(read.at(-1), own, scale) : []));
  }).observe(frame);

  svg.addEventListener("pointermove", (event) => {
    const pointerX = event.clientX - svg.getBoundingClientRect().left;
    const distance = (point) => Math.abs(scale.x(point) - pointerX);
    const nearest = points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
    svg.querySelector(".pointer")?.remove();
    svg.append(createSvg("circle", { class: "pointer", cx: scale.x(nearest), cy: scale.y(nearest.similarity), r: 6 }));
    readout.textContent = `Layer ${nearest.layer}: ${formatScore(nearest.similarity)}`;
  });
  svg.addEventListener("pointerleave", () => {
    svg.querySelector(".pointer")?.remove();
    readout.textContent = hint;
  });

  const rows = points.map((point) =>
    [`${point.layer}${encoderLayers.includes(point.layer) ? " (read)" : ""}`, formatScore(point.similarity)]);
  return create("div", {}, frame,
    create("details", { class: "as-table" }, create("summary", {}, "Show as a table"),
      table("Similarity by layer", ["Layer", "Similarity"], rows)));
}

/** The encoder's own similarity as a square above or below the last layer that it reads. */
function ownMark(point, own, scale) {
  const [x, y] = [scale.x(point), scale.y(own)];
  const isRight = x > scale.width / 2;
  return [
    createSvg("rect", { class: "own", x: x - 6, y: y - 6, width: 12, height: 12 }),
    createSvg("text", { class: "encoder-layer-label", x: x + (isRight ? -14 : 14), y: y + 4, "text-anchor": isRight ? "end" : "start" },
      `the encoder: ${formatScore(own)}`),
  ];
}

/** A vertical range in tenths around the values, and at least 0.4 wide, so that noise does not look large. */
function makeScale(points, width) {
  const values = points.map((point) => point.similarity);
  let low = Math.floor(Math.min(...values) * 10 - 0.01) / 10;
  const high = Math.min(1, Math.ceil(Math.max(...values) * 10) / 10);
  if (high - low < 0.4) low = high - 0.4;
  const numbers = points.map((point) => point.layer);
  const [first, last] = [Math.min(...numbers), Math.max(...numbers)];
  const plotWidth = width - MARGIN.left - MARGIN.right;
  const plotHeight = HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    width, low, high,
    x: (point) => MARGIN.left + (last === first ? plotWidth / 2 : (plotWidth * (point.layer - first)) / (last - first)),
    y: (value) => MARGIN.top + (plotHeight * (high - value)) / (high - low),
  };
}

function axes(points, scale) {
  const step = scale.high - scale.low > 1 ? 0.5 : scale.high - scale.low > 0.5 ? 0.2 : 0.1;
  const elements = [];
  for (let value = scale.high; value > scale.low - 1e-9; value -= step) {
    const y = scale.y(value);
    elements.push(createSvg("line", { class: "grid", x1: MARGIN.left, x2: scale.width - MARGIN.right, y1: y, y2: y }));
    const label = (Math.abs(value) < 1e-9 ? 0 : value).toFixed(1).replace("-", "−");
    elements.push(createSvg("text", { x: MARGIN.left - 10, y: y + 4, "text-anchor": "end" }, label));
  }
  const maxLabels = (scale.width - MARGIN.left - MARGIN.right) / 34;
  const labelStep = [1, 2, 5, 10, 20, 50].find((gap) => points.length / gap <= maxLabels) ?? 100;
  points.filter((_, index) => index % labelStep === 0).forEach((point) => {
    const attributes = { x: scale.x(point), y: HEIGHT - MARGIN.bottom + 20, "text-anchor": "middle" };
    elements.push(createSvg("text", attributes, String(point.layer)));
  });
  const middle = (MARGIN.left + scale.width - MARGIN.right) / 2;
  elements.push(createSvg("text", { x: middle, y: HEIGHT - 4, "text-anchor": "middle" }, "layer"));
  return elements;
}

function line(points, scale, encoderLayers) {
  const coordinates = points.map((point) => `${scale.x(point).toFixed(1)},${scale.y(point.similarity).toFixed(1)}`);
  const elements = [];
  const marked = points.filter((point) => encoderLayers.includes(point.layer));
  if (marked.length === 1) {
    const x = scale.x(marked[0]);
    const isRight = x > scale.width / 2;
    elements.push(createSvg("line", { class: "encoder-layer", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    const attributes = {
      class: "encoder-layer-label", x: x + (isRight ? -8 : 8), y: HEIGHT - MARGIN.bottom - 8, "text-anchor": isRight ? "end" : "start",
    };
    elements.push(createSvg("text", attributes, `read at layer ${marked[0].layer}`));
  }
  elements.push(createSvg("polyline", { class: "line", points: coordinates.join(" ") }));
  for (const point of points) {
    const isMarked = marked.includes(point);
    const attributes = { class: isMarked ? "dot encoder-layer-dot" : "dot", r: isMarked ? 5.5 : 3 };
    elements.push(createSvg("circle", { ...attributes, cx: scale.x(point), cy: scale.y(point.similarity) }));
  }
  return elements;
}
