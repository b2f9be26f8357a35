// Asks for a film of the newest policy and waits for it. `wanted`: whether anybody still wants to see it.

import { ask } from "./api.js";

export const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export async function filmed(run, { wanted = () => true, begun = () => {} } = {}) {
  let film = await ask("/api/watch", { run }, { method: "POST" });
  begun(film);
  while (film.state === "filming" && wanted()) {
    await pause(700);
    film = await ask("/api/watch", { run, step: film.step });
  }
  if (film.state === "failed" && wanted()) throw new Error(film.why);
  return film;
}
