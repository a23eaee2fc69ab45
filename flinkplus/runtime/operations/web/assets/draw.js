// Pictures and lists of the page: the graph, the rate, rows of tables. All text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps one child of parent for each item, in order; children stay the same nodes while their key lasts.
export function list(parent, items, key, make, fill) {
  const known = parent.children_by_key ?? new Map();
  const wanted = new Map();
  let before = null;
  for (const item of items) {
    const name = key(item);
    const node = known.get(name) ?? make(item);
    fill(node, item);
    wanted.set(name, node);
    const place = before === null ? parent.firstElementChild : before.nextElementSibling;
    if (place !== node) parent.insertBefore(node, place);
    before = node;
  }
  for (const [name, node] of known) if (!wanted.has(name)) node.remove();
  parent.children_by_key = wanted;
}

// A table with the columns [heading, kind, item -> text or fill(cell, item)].
export function table(node, caption, columns, items, key) {
  if (!node.tBodies.length) {
    node.append(element("caption", { class: "note" }, caption));
    const head = element("tr");
    for (const [heading, kind] of columns) head.append(element("th", { scope: "col", class: kind }, heading));
    node.append(element("thead", {}, head), element("tbody"));
  }
  list(node.tBodies[0], items, key,
    () => {
      const row = element("tr");
      for (const [, kind] of columns) row.append(element("td", { class: kind }));
      return row;
    },
    (row, item) => columns.forEach(([, , show], at) => {
      const cell = row.cells[at];
      if (show.length > 1) show(cell, item);
      else say(cell, show(item));
    }));
}

const WIDTH = 220, HEIGHT = 112, GAP_X = 70, GAP_Y = 22;

// Columns by the longest way from a source; edges that close a loop do not count.
export function layers(vertices, exchanges) {
  const depth = new Map(vertices.map((vertex) => [vertex.name, 0]));
  const order = new Map(vertices.map((vertex, at) => [vertex.name, at]));
  const forward = exchanges.filter((one) => order.get(one.producer) < order.get(one.consumer));
  for (let round = 0; round < vertices.length; round += 1)
    for (const one of forward)
      depth.set(one.consumer, Math.max(depth.get(one.consumer), depth.get(one.producer) + 1));
  const columns = [];
  for (const vertex of vertices) (columns[depth.get(vertex.name)] ??= []).push(vertex.name);
  return columns.filter((column) => column);
}

export function drawGraph(parent, graph, figures) {
  const columns = layers(graph.vertices, graph.exchanges);
  const places = new Map();
  columns.forEach((column, x) => column.forEach((name, y) =>
    places.set(name, { x: x * (WIDTH + GAP_X) + 1, y: y * (HEIGHT + GAP_Y) + 1 })));
  const width = columns.length * (WIDTH + GAP_X) - GAP_X + 2;
  const height = Math.max(1, ...columns.map((column) => column.length)) * (HEIGHT + GAP_Y) - GAP_Y + 30;
  const words = graph.vertices.map((vertex) => `${vertex.name}: ${figures.get(vertex.name)?.words ?? "no figures"}`);
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Graph. ${words.join("; ")}` });
  for (const one of graph.exchanges) svg.append(...edge(places.get(one.producer), places.get(one.consumer), one.route, height));
  for (const vertex of graph.vertices) svg.append(box(places.get(vertex.name), vertex, figures.get(vertex.name)));
  parent.replaceChildren(svg);
}

function edge(from, to, route, height) {
  const y1 = from.y + HEIGHT / 2, y2 = to.y + HEIGHT / 2;
  if (to.x <= from.x) {
    const low = height - 8;
    const path = `M${from.x + WIDTH / 2} ${from.y + HEIGHT} V${low} H${to.x + WIDTH / 2} V${to.y + HEIGHT + 6}`;
    return [shape("path", { class: "edge", d: path, "stroke-dasharray": "5 4" })];
  }
  const x1 = from.x + WIDTH, x2 = to.x - 6, middle = (x1 + x2) / 2;
  return [
    shape("path", { class: "edge", d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }),
    shape("path", { class: "arrow", d: `M${x2 + 6} ${y2} l-8 -5 v10 z` }),
    shape("text", { class: "dim", x: middle, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, route),
  ];
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function box(place, vertex, figures) {
  const group = shape("g", { transform: `translate(${place.x} ${place.y})` });
  group.append(shape("title", {}, vertex.name), shape("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 7 }));
  group.append(shape("text", { class: "strong", x: 10, y: 20 }, cut(vertex.name, 28)));
  const lines = figures?.lines ?? ["no figures yet"];
  lines.forEach((line, at) => group.append(shape("text", { class: "dim", x: 10, y: 40 + at * 17 }, cut(line, 33))));
  const share = Math.min(1, figures?.busy ?? 0);
  group.append(shape("rect", { class: "empty", x: 10, y: HEIGHT - 12, width: WIDTH - 20, height: 6, rx: 3 }));
  group.append(shape("rect", { class: "fill", x: 10, y: HEIGHT - 12, width: (WIDTH - 20) * share, height: 6, rx: 3 }));
  return group;
}

// points: [seconds, rows per second]; marks: seconds at which failovers began.
export function drawRate(parent, points, marks, span, format) {
  const width = 1000, height = 110, bottom = 92;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" });
  const last = points.length ? points[points.length - 1][0] : 0, first = last - span;
  const top = Math.max(1, ...points.map(([, rate]) => rate));
  const x = (at) => ((at - first) / span) * width, y = (rate) => bottom - (rate / top) * (bottom - 16);
  svg.append(shape("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }));
  for (const at of marks) if (at >= first) svg.append(shape("line", { class: "mark", x1: x(at), x2: x(at), y1: 4, y2: bottom }));
  svg.append(shape("polyline", { class: "area", points: points.map(([at, rate]) => `${x(at).toFixed(1)},${y(rate).toFixed(1)}`).join(" ") }));
  const now = points.length ? points[points.length - 1][1] : 0;
  svg.setAttribute("aria-label", `Rows per second: now ${format(now)}, at most ${format(top)}`);
  parent.replaceChildren(svg);
}
