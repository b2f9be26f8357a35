// Gymnasium's classic control, as the player simulates it: the same equations, constants and limits, in doubles.

const clip = (x, low, high) => Math.max(low, Math.min(high, x));
const between = (low, high) => low + (high - low) * Math.random();
const TURN = 2 * Math.PI;
const wrap = (angle) => angle - TURN * Math.floor((angle + Math.PI) / TURN); // into [−π, π)

// Of each: numbers of an observation, choices (null: one number), steps a second, the usual limit of steps, and
// step(state, action) -> {state, reward, over}.

const cartPole = {
  kind: "cart", observation: 4, choices: 2, rate: 50, limit: 500, actions: ["push left", "push right"],
  begin: () => Array.from({ length: 4 }, () => between(-0.05, 0.05)),
  observe: (state) => state,
  step([position, velocity, angle, spin], action) {
    const cos = Math.cos(angle), sin = Math.sin(angle);
    const push = ((action === 1 ? 10 : -10) + 0.05 * spin * spin * sin) / 1.1;
    const turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
    const pull = push - (0.05 * turn * cos) / 1.1;
    const state = [position + 0.02 * velocity, velocity + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn];
    return { state, reward: 1, over: Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > (12 * TURN) / 360 };
  },
};

const pendulum = {
  kind: "pendulum", observation: 3, choices: null, rate: 20, limit: 200,
  begin: () => [between(-Math.PI, Math.PI), between(-1, 1)],
  observe: ([angle, speed]) => [Math.cos(angle), Math.sin(angle), speed],
  step([angle, speed], action) {
    const torque = clip(action, -2, 2);
    const cost = wrap(angle) ** 2 + 0.1 * speed ** 2 + 0.001 * torque ** 2;
    const faster = clip(speed + (15 * Math.sin(angle) + 3 * torque) * 0.05, -8, 8);
    return { state: [angle + faster * 0.05, faster], reward: -cost, over: false };
  },
};

const slope = ([upper, lower, upperSpeed, lowerSpeed], torque) => {
  const cos = Math.cos(lower), sin = Math.sin(lower), g = 9.8;
  const d1 = 3.5 + cos, d2 = 1.25 + 0.5 * cos;
  const phi2 = 0.5 * g * Math.cos(upper + lower - Math.PI / 2);
  const phi1 = -0.5 * lowerSpeed ** 2 * sin - lowerSpeed * upperSpeed * sin + 1.5 * g * Math.cos(upper - Math.PI / 2) + phi2;
  const faster = (torque + (d2 / d1) * phi1 - 0.5 * upperSpeed ** 2 * sin - phi2) / (1.25 - d2 ** 2 / d1);
  return [upperSpeed, lowerSpeed, -(d2 * faster + phi1) / d1, faster];
};

const acrobot = {
  kind: "acrobot", observation: 6, choices: 3, rate: 15, limit: 500, actions: ["torque −1", "no torque", "torque +1"],
  begin: () => Array.from({ length: 4 }, () => Math.fround(between(-0.1, 0.1))),
  observe: ([upper, lower, upperSpeed, lowerSpeed]) => [Math.cos(upper), Math.sin(upper), Math.cos(lower), Math.sin(lower), upperSpeed, lowerSpeed],
  step(state, action) { // fourth-order Runge–Kutta
    const dt = 0.2, torque = action - 1, after = (by, k) => state.map((x, i) => x + by * k[i]);
    const a = slope(state, torque), b = slope(after(dt / 2, a), torque), c = slope(after(dt / 2, b), torque), d = slope(after(dt, c), torque);
    const [upper, lower, upperSpeed, lowerSpeed] = state.map((x, i) => x + (dt / 6) * (a[i] + 2 * b[i] + 2 * c[i] + d[i]));
    const next = [wrap(upper), wrap(lower), clip(upperSpeed, -4 * Math.PI, 4 * Math.PI), clip(lowerSpeed, -9 * Math.PI, 9 * Math.PI)];
    const over = -Math.cos(next[0]) - Math.cos(next[1] + next[0]) > 1;
    return { state: next, reward: over ? 0 : -1, over };
  },
};

const drive = ([position, velocity], force, goal) => {
  let faster = clip(velocity + force - 0.0025 * Math.cos(3 * position), -0.07, 0.07);
  const next = clip(position + faster, -1.2, 0.6);
  if (next === -1.2 && faster < 0) faster = 0;
  return { state: [next, faster], over: next >= goal && faster >= 0 };
};

const mountainCar = {
  kind: "hill", observation: 2, choices: 3, rate: 30, limit: 200, goal: 0.5, actions: ["left", "coast", "right"],
  begin: () => [between(-0.6, -0.4), 0],
  observe: (state) => state,
  step: (state, action) => ({ ...drive(state, (action - 1) * 0.001, 0.5), reward: -1 }),
};

const mountainCarContinuous = {
  ...mountainCar, choices: null, limit: 999, goal: 0.45, actions: undefined,
  step(state, action) {
    const moved = drive(state, clip(action, -1, 1) * 0.0015, 0.45);
    return { ...moved, reward: (moved.over ? 100 : 0) - 0.1 * action ** 2 };
  },
};

const WORLDS = new Map([
  ["CartPole-v1", cartPole], ["CartPole-v0", { ...cartPole, limit: 200 }], ["Pendulum-v1", pendulum], ["Acrobot-v1", acrobot],
  ["MountainCar-v0", mountainCar], ["MountainCarContinuous-v0", mountainCarContinuous],
]);

// The world of a run, with its own limit of steps; null if its env is another one or has been changed.
export function worldOf({ env, limit, changed, policy }) {
  const world = WORLDS.get(env);
  const fits = world && policy && !changed.length && policy.observation === world.observation && policy.choices === world.choices && policy.action === 1;
  return fits ? { ...world, limit: limit ?? world.limit } : null;
}
