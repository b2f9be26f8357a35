import sys

import gymnasium as gym
import pytest

from surefoot.envs.config import EnvConfig
from surefoot.envs.make import known_envs, make_env
from surefoot.errors import EnvError, UsageError
from surefoot.user_code import load_object
from tests.helpers import ScriptedEnv


@pytest.fixture
def registered():
    """Ids of ScriptedEnv, gone after the test."""
    ids = ["SurefootTest-v9", "SurefootTest-v10"]
    for env_id in ids:
        gym.register(env_id, entry_point="tests.helpers:ScriptedEnv", max_episode_steps=2)
    yield ids
    for env_id in ids:
        del gym.registry[env_id]


def make(env="", factory=None, **config):
    return make_env(EnvConfig(env=env, **config), factory)


def episode_length(env):
    env.reset(seed=0)
    for length in range(1, 2000):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            return length
    raise AssertionError


def wrappers_of(env):
    names = []
    while env is not env.unwrapped:
        names.append(type(env).__name__)
        env = env.env
    return names


def test_a_registered_id():
    env = make("CartPole-v1")
    assert env.spec.id == "CartPole-v1"
    assert "PassiveEnvChecker" not in wrappers_of(env)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v9", "CartPole-v1"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("CartPole", "CartPole-v1"),
        ("SurefootTest-v99", "SurefootTest-v10"),
        ("SurefootTest-v1", "SurefootTest-v10"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_an_unknown_id_suggests_the_nearest_and_the_newest(wrong, right):
    with pytest.raises(UsageError, match=f"unknown environment '{wrong}'; did you mean '{right}'"):
        make(wrong)


def test_an_id_like_no_other_says_where_to_look():
    with pytest.raises(UsageError, match="surefoot list envs"):
        make("Qqqqzzz-v0")


@pytest.mark.parametrize(
    "wrong",
    [
        "Cart Pole",
        "CartPole-v1-",
        "a:b:c",
    ],
)
def test_a_malformed_id_is_the_users_error(wrong):
    with pytest.raises(UsageError, match=wrong.split(":")[0]):
        make(wrong)


def test_no_env_is_refused_with_an_example():
    with pytest.raises(UsageError, match="surefoot train CartPole-v1"):
        make("")


@pytest.mark.parametrize(
    ("env", "package", "extra"),
    [("LunarLander-v3", "Box2D", "box2d"), ("HalfCheetah-v5", "mujoco", "mujoco")],
)
def test_a_missing_package_names_the_extra_that_installs_it(monkeypatch, env, package, extra):
    for name in [m for m in sys.modules if m.startswith((f"gymnasium.envs.{extra}", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf'{env}.*pip install "surefoot\[{extra}\]"'):
        make(env)


def test_a_missing_atari_package_names_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'pip install "surefoot\[atari\]"'):
        make("ALE/Pong-v5")


def test_env_kwargs_reach_the_env():
    assert make("Pendulum-v1", env_kwargs={"g": 3.0}).unwrapped.g == 3.0
    assert make(factory=ScriptedEnv, env_kwargs={"rewards": (7.0,)}).rewards == (7.0,)


def test_wrong_env_kwargs_are_named():
    with pytest.raises(UsageError, match=r"env_kwargs.*gravity.*Pendulum-v1"):
        make("Pendulum-v1", env_kwargs={"gravity": 3.0})


def test_arguments_of_gymnasium_make_are_no_env_kwargs():
    for name, instead in {"max_episode_steps": "--max-episode-steps", "id": "before the flags"}.items():
        with pytest.raises(UsageError, match=f"{name} is an argument of gymnasium.make: .*{instead}"):
            make_env(EnvConfig(env="CartPole-v1", env_kwargs={name: 50}))


def test_render_mode_reaches_the_env():
    assert make_env(EnvConfig(), ScriptedEnv, render_mode="rgb_array").render_mode == "rgb_array"


def test_an_env_that_raises_keeps_its_cause():
    def factory():
        raise ZeroDivisionError("no simulator")

    with pytest.raises(EnvError, match="ZeroDivisionError: no simulator") as caught:
        make(factory=factory)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_factory_must_return_an_env():
    with pytest.raises(UsageError, match="returned int"):
        make(factory=lambda: 5)
    with pytest.raises(UsageError, match=r"SyncVectorEnv, a vector env; in Python, pass it itself to surefoot.train"):
        make(factory=lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))


def test_max_episode_steps_truncates():
    env = make(factory=lambda: ScriptedEnv(rewards=(1.0,) * 50), max_episode_steps=4)
    assert episode_length(env) == 4
    assert make("CartPole-v1", max_episode_steps=3).spec.max_episode_steps == 3


@pytest.mark.filterwarnings("ignore")
def test_max_episode_steps_may_lengthen_a_registered_limit():
    assert episode_length(make("Pendulum-v1", max_episode_steps=300)) == 300


def test_wrappers_apply_innermost_first_and_take_json():
    env = make(
        factory=lambda: ScriptedEnv(rewards=(1.0,) * 50),
        wrappers=('TimeLimit{"max_episode_steps": 5}', "FlattenObservation"),
    )
    assert wrappers_of(env) == ["FlattenObservation", "TimeLimit"]
    assert episode_length(env) == 5


WRAPPER_FILE = """
import gymnasium as gym
class Doubled(gym.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor
    def reward(self, reward):
        return self.factor * reward
"""


@pytest.mark.parametrize("form", ["{path}/my_wrapper.py:Doubled", "my_wrapper:Doubled"])
@pytest.mark.parametrize(("arguments", "reward"), [("", 2.0), ('{"factor": 5}', 5.0)])
def test_wrappers_from_a_file_or_a_module(tmp_path, monkeypatch, form, arguments, reward):
    (tmp_path / "my_wrapper.py").write_text(WRAPPER_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    env = make(factory=ScriptedEnv, wrappers=(form.replace("{path}", str(tmp_path)) + arguments,))
    env.reset()
    assert env.step(0)[1] == reward


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("TimeLimitt", "did you mean 'TimeLimit'"),
        ("TimeLimit{max_episode_steps=5}", "not JSON"),
        ('TimeLimit{"steps": 5}', "TimeLimit.*steps"),
        ("no_such_module:Wrapper", "no_such_module"),
        ("nowhere.py:Wrapper", "nowhere.py does not exist"),
    ],
)
def test_wrong_wrappers_are_named(wrapper, words):
    with pytest.raises(UsageError, match=words):
        make(factory=ScriptedEnv, wrappers=(wrapper,))


ENV_FILE = """
from tests.helpers import ScriptedEnv
class Mine(ScriptedEnv):
    pass
def create(rewards=(3.0,)):
    return ScriptedEnv(rewards=rewards)
"""


@pytest.mark.parametrize("folder", ["plain", "with space", "ünï"])
def test_an_env_from_a_file(tmp_path, folder):
    file = tmp_path / folder / "my env.py"
    file.parent.mkdir()
    file.write_text(ENV_FILE)
    assert type(make(f"{file}:Mine")).__name__ == "Mine"
    assert make(f"{file}:create").rewards == (3.0,)
    assert make(f"{file}:create", env_kwargs={"rewards": [1, 2]}).rewards == (1, 2)


def test_a_file_relative_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ENV_FILE)
    monkeypatch.chdir(tmp_path)
    assert type(make("mine.py:Mine")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("file.py:Mein", UsageError, "no 'Mein'.*did you mean 'Mine'"),
        ("other.py:Mine", UsageError, "other.py does not exist"),
        ("broken.py:Mine", EnvError, "broken.py raised NameError"),
    ],
)
def test_a_wrong_file_or_name_is_told(tmp_path, monkeypatch, name, error, words):
    (tmp_path / "file.py").write_text(ENV_FILE)
    (tmp_path / "broken.py").write_text("undefined_name")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        make(name)


def test_an_id_from_a_module(tmp_path, monkeypatch):
    (tmp_path / "surefoot_test_plugin.py").write_text(
        "import gymnasium\ngymnasium.register('FromModule-v0', entry_point='tests.helpers:ScriptedEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert isinstance(make("surefoot_test_plugin:FromModule-v0").unwrapped, ScriptedEnv)
    finally:
        gym.registry.pop("FromModule-v0", None)


def test_an_id_from_a_module_that_is_missing():
    with pytest.raises(UsageError, match=r"no_such_plugin:Foo-v0 could not be made: No module named"):
        make("no_such_plugin:Foo-v0")


@pytest.mark.parametrize("path", ["Name", ":Name", "module:"])
def test_an_object_needs_a_source_and_a_name(path):
    with pytest.raises(UsageError, match=r"file\.py:Name or module:Name"):
        load_object(path, "policy")


@pytest.mark.usefixtures("registered")
def test_known_envs_are_sorted_by_version_number():
    known = known_envs()
    assert known.index("SurefootTest-v9") < known.index("SurefootTest-v10")
    assert "CartPole-v1" in known
    assert not [env for env in known if env.startswith(("phys2d/", "tabular/"))]


@pytest.mark.usefixtures("registered")
def test_the_registered_time_limit_holds():
    assert episode_length(make("SurefootTest-v10")) == 2


class Bare(gym.Env):
    """As people write them: no `__init__`, so that render_mode has nowhere to go."""

    observation_space = action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("factory", [Bare, lambda: Bare()], ids=["a class", "a function"])
def test_a_factory_that_cannot_be_told_to_draw_is_named(factory):
    assert isinstance(make("", factory), gym.Env)
    with pytest.raises(UsageError, match="factory must take render_mode"):
        make_env(EnvConfig(), factory, render_mode="rgb_array")
    with pytest.raises(EnvError, match="raised TypeError"):  # something else is wrong with it
        make_env(EnvConfig(env_kwargs={"size": 3}), Bare, render_mode="rgb_array")


def test_a_file_may_import_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_env_2718.py").write_text("import gymnasium as gym\nLIMIT = 3\n")
    (tmp_path / "mine.py").write_text(
        "from beside_the_env_2718 import LIMIT, gym\n"
        "def make(): return gym.make('CartPole-v1', max_episode_steps=LIMIT)\n"
    )
    assert episode_length(make(f"{tmp_path / 'mine.py'}:make")) == 3
