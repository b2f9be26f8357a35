// Who chooses the actions: the policy in this browser, as WebAssembly, or the server. Both take raw observations.

import { ask, query } from "./api.js";

export async function inBrowser(run, facts) {
  const response = await fetch(query("/policy.wasm", { run, step: facts.step }), { method: "POST" });
  if (!response.ok) throw new Error((await response.json()).error);
  const { instance } = await WebAssembly.instantiate(await response.arrayBuffer(), {});
  const { memory, observation, action, begin, step } = instance.exports;
  const seen = new Float32Array(memory.buffer, observation(), facts.policy.observation);
  const chosen = new Float32Array(memory.buffer, action(), facts.policy.action);
  return {
    where: "browser",
    begin,
    act(numbers) {
      seen.set(numbers);
      if (step()) throw new Error("the policy's result is not finite");
      return chosen[0];
    },
  };
}

export function onServer(run, facts) {
  let state; // the policy's memory travels with every question
  return {
    where: "server",
    begin() { state = undefined; },
    async act(numbers) {
      const body = JSON.stringify({ observation: [...numbers], ...(state ? { state } : {}) });
      const answer = await ask("/api/act", { run, step: facts.step }, { method: "POST", body });
      state = answer.state;
      return Array.isArray(answer.action) ? answer.action[0] : answer.action;
    },
  };
}
