// Requests to the server, and the events that it sends.

export function query(path, parameters) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) url.searchParams.append(name, one);
    }
  }
  return url.pathname + url.search;
}

export async function ask(path, parameters = {}, options = {}) {
  const response = await fetch(query(path, parameters), options);
  const text = await response.text();
  let answer;
  try { answer = JSON.parse(text); } catch { throw new Error(text.trim() || `the server answered ${response.status}`); }
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

export function listen(onRuns, onState) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => onState("live"));
  source.addEventListener("error", () => onState("lost"));
  source.addEventListener("runs", (event) => onRuns(JSON.parse(event.data)));
}
