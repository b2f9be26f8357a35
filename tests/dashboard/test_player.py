"""The player: what the server says and does for it, and the envs and policies as the browser computes them."""

import json
import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from starlette.testclient import TestClient

import surefoot
from surefoot.dashboard import player
from surefoot.dashboard.app import make_app
from surefoot.deploy.c.wasm import compile_wasm, find_wasm_compiler
from surefoot.deploy.describe import read_program
from surefoot.deploy.program import Gru, Linear
from surefoot.deploy.size import multiplications
from surefoot.errors import UsageError
from surefoot.runs.locate import locate_checkpoint

HERE = "http://127.0.0.1:6060"
RUNS = Path(__file__).parents[1] / "fixtures" / "runs-0.1.0"
STATIC = Path(player.__file__).parent / "static"
WORLDS = {  # env: (choices, numbers of an observation)
    "CartPole-v1": (2, 4),
    "Pendulum-v1": (None, 3),
    "Acrobot-v1": (3, 6),
    "MountainCar-v0": (3, 2),
    "MountainCarContinuous-v0": (None, 2),
}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")


@pytest.fixture
def root(tmp_path):
    for name in ("ppo-gru", "ppo-normalized", "trpo-discrete"):
        shutil.copytree(RUNS / name, tmp_path / "all" / name)
    return tmp_path / "all"


@pytest.fixture
def client(root, monkeypatch):
    monkeypatch.setattr(player, "_compiler", lambda: None)
    with TestClient(make_app(root), base_url=HERE, headers={"origin": HERE}) as client:
        client.get("/api/runs")
        yield client


def opened(client, run, status=200):
    answer = client.get("/api/player", params={"run": run})
    assert answer.status_code == status, answer.text
    return answer.json()


def ask(client, path, question, **parameters):
    content = question if isinstance(question, (bytes, str)) else json.dumps(question)
    return client.post(path, params=parameters, content=content)


def set_line(run, name, value):
    file = run / "config.toml"
    lines = [f"{name} = {value}" if line.startswith(f"{name} =") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines) + "\n")


def test_what_the_page_has_to_know(client):
    found = opened(client, "ppo-gru")
    assert (found["env"], found["changed"], found["limit"]) == ("CartPole-v1", [], None)
    assert found["policy"] == {"observation": 4, "action": 1, "choices": 2, "memory": found["policy"]["memory"]}
    assert found["policy"]["memory"] > 0
    assert "pip install 'surefoot[wasm]'" in found["why"]
    assert opened(client, "ppo-normalized")["policy"] == {"observation": 3, "action": 1, "choices": None, "memory": 0}
    assert opened(client, "trpo-discrete")["policy"] is None  # its env is filmed


@pytest.mark.parametrize("run", ["ppo-gru", "ppo-normalized"])
def test_the_server_acts_as_the_light_agent_does(client, root, run):
    """With a memory, which travels with the questions, and with a normaliser."""
    found, agent = opened(client, run), surefoot.load(root / run, backend="numpy")
    numbers = np.random.default_rng(0).normal(size=(6, found["policy"]["observation"])).astype(np.float32)
    state, known = None, {}
    for observation in numbers:
        action, state = agent.predict(observation, state)
        question = {"observation": observation.tolist(), **known}
        answer = ask(client, "/api/act", question, run=run, step=found["step"]).json()
        np.testing.assert_allclose(answer["action"], action, rtol=1e-6)
        known = {} if state is None else {"state": answer["state"]}


def test_what_is_no_question_is_refused_and_the_next_one_answered(client):
    step = opened(client, "ppo-gru")["step"]
    sound = {"observation": [0.0, 0.0, 0.0, 0.0]}
    wrong = [({}, 422), ("no JSON", 400), ({"observation": [1]}, 422), ({"observation": [1e300] * 4}, 422)]
    wrong += [({**sound, "state": [1.0]}, 422), (b" " * (2**20 + 1), 413), ('{"observation": [NaN, 0, 0, 0]}', 400)]
    for question, status in wrong:
        answer = ask(client, "/api/act", question, run="ppo-gru", step=step)
        assert answer.status_code == status, (question, answer.text)
        assert answer.json()["error"]
    assert ask(client, "/api/act", sound, run="ppo-gru", step=step).status_code == 200
    assert ask(client, "/api/act", sound, run="ppo-gru", step=step + 1).status_code == 404
    assert ask(client, "/api/act", sound, run="ppo-normalized", step=step).status_code == 404  # not opened
    assert ask(client, "/api/act", sound).status_code == 404
    assert client.get("/api/act").status_code == 405
    assert client.get("/policy.wasm").status_code == 405


def test_without_a_compiler_there_is_no_module(client):
    step = opened(client, "ppo-gru")["step"]
    answer = ask(client, "/policy.wasm", b"", run="ppo-gru", step=step)
    assert answer.status_code == 404
    assert "there is no compiler for WebAssembly" in answer.json()["error"]


def test_a_policy_that_is_too_large_is_not_compiled(client, monkeypatch):
    monkeypatch.setattr(player, "_compiler", lambda: ("never called",))
    monkeypatch.setattr(player, "MOST_WEIGHTS", 10)
    assert "weights are too many to compile" in opened(client, "ppo-gru")["why"]


def test_the_weights_of_a_memory_count(client, root, monkeypatch):
    """They are most of the weights of a policy that has one, and a stranger chooses its size."""
    monkeypatch.setattr(player, "_compiler", lambda: ("never called",))
    program = read_program(locate_checkpoint(root / "ppo-gru")[0])
    (memory,) = (each for each in program.operations if isinstance(each, Gru))
    layers = sum(each.weight.size for each in program.operations if isinstance(each, Linear))
    assert memory.of_hidden.size > 0
    monkeypatch.setattr(player, "MOST_WEIGHTS", layers + memory.of_hidden.size - 1)
    assert "weights are too many to compile" in opened(client, "ppo-gru")["why"]
    assert multiplications(program) >= layers + memory.of_hidden.size + memory.of_input.size


def test_only_a_page_of_ours_can_ask(client):
    opened(client, "ppo-gru")
    for path in ("/api/act", "/policy.wasm"):
        assert client.post(path, headers={"origin": "http://evil.com"}).status_code == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [("env_kwargs", "'{\"sutton_barto_reward\": true}'"), ("wrappers", '["FlattenObservation"]'), ("frame_stack", "4")],
)
def test_an_env_that_a_run_changes_is_not_simulated(client, root, name, value):
    set_line(root / "ppo-gru", name, value)
    assert opened(client, "ppo-gru")["changed"] == [name]


def test_a_run_s_own_limit_of_steps(client, root):
    set_line(root / "ppo-gru", "max_episode_steps", "77")
    assert opened(client, "ppo-gru")["limit"] == 77


def test_runs_that_cannot_be_played(client, root, monkeypatch):
    assert "does not exist" in opened(client, "../ppo-gru", 404)["error"]
    shutil.rmtree(root / "ppo-gru" / "checkpoints")
    assert "no checkpoint yet" in opened(client, "ppo-gru", 404)["error"]
    weights = next((root / "ppo-normalized").rglob("policy.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert opened(client, "ppo-normalized", 422)["error"]
    (root / "ppo-gru" / "checkpoints").symlink_to(root / "trpo-discrete" / "checkpoints")
    assert "is a link" in opened(client, "ppo-gru", 422)["error"]

    def own_encoder(folder):
        raise UsageError("it has an encoder of its own")

    monkeypatch.setattr(player, "read_program", own_encoder)
    found = opened(client, "trpo-discrete")  # the page asks for a film, which has its own rules
    assert (found["policy"], found["step"]) == (None, None)


def test_old_policies_are_forgotten(client, monkeypatch):
    monkeypatch.setattr(player, "KEPT", 1)
    step = opened(client, "ppo-gru")["step"]
    opened(client, "ppo-normalized")
    answer = ask(client, "/api/act", {"observation": [0.0] * 4}, run="ppo-gru", step=step)
    assert answer.status_code == 404
    assert "reload the page" in answer.json()["error"]


def in_node(folder, code, given):
    """What the script returns for `given`, as JSON."""
    script = folder / "script.mjs"
    script.write_text(f"import {{ readFileSync }} from 'node:fs';\nconst given = JSON.parse(readFileSync(0));\n{code}")
    words = ["node", str(script)]
    done = subprocess.run(words, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SIMULATE = """import { worldOf } from "./worlds.mjs";
const answers = {};
for (const [env, { facts, steps }] of Object.entries(given)) {
  const world = worldOf(facts);
  answers[env] = steps.map(([state, action]) => {
    const found = world.step(state, action);
    return [world.observe(found.state), found.reward, found.over];
  });
  const begun = Array.from({ length: 200 }, () => world.begin());
  answers[env] = { steps: answers[env], limit: world.limit, begun };
}
console.log(JSON.stringify(answers));"""


def played(env_id, count=300):
    """(the run's facts and [state, action] of each step, what Gymnasium made of them, where episodes begin, limit)."""
    env, (choices, size) = gym.make(env_id), WORLDS[env_id]
    facts = {"env": env_id, "limit": None, "changed": [], "policy": {"observation": size, "action": 1}}
    facts["policy"]["choices"] = choices
    env.action_space.seed(0)
    steps, results, over = [], [], True
    for number in range(count):
        if over:
            env.reset(seed=number)
        before, action = [float(x) for x in env.unwrapped.state], env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        steps.append((before, float(np.reshape(action, -1)[0])))
        results.append((observation, float(reward), bool(terminated)))
        over = terminated or truncated
    begun = []
    for seed in range(200):
        env.reset(seed=seed)
        begun.append([float(x) for x in env.unwrapped.state])
    limit = env.spec.max_episode_steps
    env.close()
    return {"facts": facts, "steps": steps}, results, np.array(begun), limit


@needs_node
def test_the_page_simulates_what_gymnasium_does(tmp_path):
    shutil.copy(STATIC / "worlds.js", tmp_path / "worlds.mjs")
    expected = {env: played(env) for env in WORLDS}
    found = in_node(tmp_path, SIMULATE, {env: given for env, (given, *_) in expected.items()})
    for env, (_, results, begun, limit) in expected.items():
        assert found[env]["limit"] == limit
        for (observation, reward, over), (seen, gained, ended) in zip(results, found[env]["steps"], strict=True):
            np.testing.assert_allclose(seen, observation, rtol=1e-5, atol=1e-5, err_msg=env)
            assert gained == pytest.approx(reward, rel=1e-5, abs=1e-5)
            assert ended == over
        starts = np.array(found[env]["begun"])
        np.testing.assert_allclose(starts.mean(0), begun.mean(0), atol=0.25 * np.abs(begun).max() + 1e-9)
        np.testing.assert_allclose(starts.std(0), begun.std(0), rtol=0.25, atol=1e-9)


@needs_node
def test_another_env_and_another_policy_are_not_simulated(tmp_path):
    shutil.copy(STATIC / "worlds.js", tmp_path / "worlds.mjs")
    policy = {"observation": 4, "action": 1, "choices": 2, "memory": 0}
    sound = {"env": "CartPole-v1", "limit": 9, "changed": [], "policy": policy}
    wrong = [{"env": "Ant-v5"}, {"env": "constructor"}, {"env": None}, {"changed": ["wrappers"]}, {"policy": None}]
    wrong += [{"policy": {**policy, "choices": 3}}, {"policy": {**policy, "observation": 8}}]
    code = (
        'import { worldOf } from "./worlds.mjs";\nconsole.log(JSON.stringify(given.map((f) => worldOf(f)?.limit ?? 0)))'
    )
    assert in_node(tmp_path, code, [sound, *({**sound, **each} for each in wrong)]) == [9] + [0] * len(wrong)


EXECUTE = """const code = readFileSync(new URL("policy.wasm", import.meta.url));
const { instance } = await WebAssembly.instantiate(code, {});
const { memory, observation, action, begin, step } = instance.exports;
const answers = given.episodes.map((episode) => {
  begin();
  return episode.map((numbers) => {
    new Float32Array(memory.buffer, observation(), numbers.length).set(numbers);
    if (step()) return null;
    return [...new Float32Array(memory.buffer, action(), 1)];
  });
});
console.log(JSON.stringify(answers));"""


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize("run", ["ppo-gru", "ppo-normalized", "ppo-lstm-torch", "ppo-tanh", "a2c"])
def test_webassembly_acts_as_the_light_agent_does(run, tmp_path):
    """Choices and numbers, with a memory that each episode begins anew, a normaliser and bounds."""
    compiler = find_wasm_compiler()
    if compiler is None:
        pytest.skip("there is no compiler for WebAssembly")
    program = read_program(locate_checkpoint(RUNS / run)[0])
    (tmp_path / "policy.wasm").write_bytes(compile_wasm(program, compiler))
    agent = surefoot.load(RUNS / run, backend="numpy")
    episodes = np.random.default_rng(1).normal(size=(3, 20, program.layout.numbers)).astype(np.float32)
    found = in_node(tmp_path, EXECUTE, {"episodes": episodes.tolist()})
    for episode, actions in zip(episodes, found, strict=True):
        state = None
        for observation, action in zip(episode, actions, strict=True):
            expected, state = agent.predict(observation, state)
            np.testing.assert_allclose(action, np.reshape(expected, -1), rtol=1e-5, atol=1e-6)


def test_the_compiler_s_reason_is_told(tmp_path):
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\necho cannot do that >&2\nexit 1\n")
    broken.chmod(0o755)
    program = read_program(locate_checkpoint(RUNS / "a2c")[0])
    with pytest.raises(surefoot.SurefootError, match="does not compile the policy: cannot do that"):
        compile_wasm(program, (str(broken),))
