// Draws a world's state on a canvas, in the colours of the page. A unit of the world is `unit` pixels; y goes up.

const DRAW = { cart, pendulum, acrobot, hill };

export function draw(canvas, world, state, push) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = width / 2;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d"), sheet = getComputedStyle(document.documentElement);
  const color = (name) => sheet.getPropertyValue(`--${name}`).trim();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.lineCap = "round";
  pen.lineJoin = "round";
  DRAW[world.kind]({ pen, width, height, color }, state, push, world);
}

function line({ pen, color }, ink, thick, ...points) {
  pen.strokeStyle = color(ink);
  pen.lineWidth = thick;
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

function disc({ pen, color }, ink, x, y, radius) {
  pen.fillStyle = color(ink);
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

// How strongly the policy pushes, −1 to 1: an arrow to the left or to the right.
function arrow(on, x, y, push, longest) {
  const tip = x + push * longest, head = Math.sign(push) * Math.min(7, Math.abs(tip - x));
  if (Math.abs(tip - x) < 2) return;
  line(on, "wait", 3, [x, y], [tip, y]);
  line(on, "wait", 3, [tip - head, y - 5], [tip, y], [tip - head, y + 5]);
}

// The same for a torque, counter-clockwise if positive.
function twist(on, x, y, push, radius) {
  if (Math.abs(push) < 0.03) return;
  const { pen, color } = on, end = -Math.PI / 2 - push * 1.6, side = Math.sign(push);
  pen.strokeStyle = color("wait");
  pen.lineWidth = 3;
  pen.beginPath();
  pen.arc(x, y, radius, -Math.PI / 2, end, push > 0);
  pen.stroke();
  const tip = [x + radius * Math.cos(end), y + radius * Math.sin(end)], along = end - (side * Math.PI) / 2;
  const back = (by) => [tip[0] - 8 * Math.cos(along + by), tip[1] - 8 * Math.sin(along + by)];
  line(on, "wait", 3, back(0.6), tip, back(-0.6));
}

function cart(on, [position, , angle], push) {
  const { pen, width, height, color } = on, unit = (width * 0.92) / 4.8, ground = height * 0.76;
  const x = width / 2 + position * unit, wide = unit * 0.44, high = unit * 0.24, top = ground - high - unit * 0.07;
  line(on, "rule", 2, [0, ground], [width, ground]);
  for (const side of [-2.4, 2.4]) line(on, "bad", 2, [width / 2 + side * unit, ground - 9], [width / 2 + side * unit, ground + 9]);
  line(on, "rule", 2, [width / 2, ground - 5], [width / 2, ground + 5]);
  pen.fillStyle = color("ink");
  pen.beginPath();
  pen.roundRect(x - wide / 2, top, wide, high, 5);
  pen.fill();
  for (const side of [-1, 1]) disc(on, "quiet", x + (side * wide) / 3.4, ground - unit * 0.06, unit * 0.06);
  line(on, "accent", unit * 0.075, [x, top], [x + Math.sin(angle) * unit, top - Math.cos(angle) * unit]);
  disc(on, "ink", x, top, unit * 0.05);
  arrow(on, x, ground + height * 0.11, push, unit * 0.4);
}

function pendulum(on, [angle], push) {
  const { width, height } = on, x = width / 2, y = height / 2, rod = height * 0.36;
  const tip = [x - Math.sin(angle) * rod, y - Math.cos(angle) * rod];
  line(on, "rule", 2, [x, y - rod - 18], [x, y - rod - 8]); // upright
  line(on, "accent", height * 0.05, [x, y], tip);
  disc(on, "ink", x, y, height * 0.022);
  twist(on, x, y, push, height * 0.13);
}

function acrobot(on, [upper, lower], push) {
  const { width, height } = on, unit = height / 4.6, x = width / 2, y = height / 2;
  const elbow = [x + Math.sin(upper) * unit, y + Math.cos(upper) * unit];
  const tip = [elbow[0] + Math.sin(upper + lower) * unit, elbow[1] + Math.cos(upper + lower) * unit];
  line(on, "good", 2, [width * 0.08, y - unit], [width * 0.92, y - unit]); // the tip must rise above it
  line(on, "accent", unit * 0.13, [x, y], elbow, tip);
  disc(on, "ink", x, y, unit * 0.08);
  disc(on, "ink", ...elbow, unit * 0.08);
  twist(on, ...elbow, push, unit * 0.3);
}

function hill(on, [position], push, { goal }) {
  const { pen, width, height, color } = on, unit = (width * 0.92) / 1.8, left = width * 0.04;
  const at = (x) => [left + (x + 1.2) * unit, height * 0.86 - (Math.sin(3 * x) * 0.45 + 0.55) * height * 0.62];
  line(on, "quiet", 2, ...Array.from({ length: 121 }, (_, i) => at(-1.2 + (1.8 * i) / 120)));
  const [flagX, flagY] = at(goal);
  line(on, "good", 2, [flagX, flagY], [flagX, flagY - 34]);
  pen.fillStyle = color("good");
  pen.beginPath();
  for (const [x, y] of [[0, -34], [18, -27], [0, -20]]) pen.lineTo(flagX + x, flagY + y);
  pen.fill();
  const [x, y] = at(position), size = Math.max(6, width * 0.014);
  disc(on, "accent", x, y - size, size);
  arrow(on, x, y - 3.4 * size, push, width * 0.06);
}
