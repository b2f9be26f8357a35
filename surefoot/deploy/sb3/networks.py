"""The networks of a saved model as weights of ours: the same function, to the last few bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.deploy.sb3.features import FeatureReader, Features, gather
from surefoot.deploy.sb3.hyperparameters import activation
from surefoot.errors import UsageError
from surefoot.schema import Misfit

if TYPE_CHECKING:
    from surefoot.deploy.sb3.archive import SavedModel
    from surefoot.deploy.sb3.hyperparameters import Hyperparameters
    from surefoot.spaces.rows import RowLayout
    from surefoot.types import Array, GymSpace

GATES = 4
LSTM = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@dataclass(frozen=True)
class Inputs:
    """What a layer of ours is given: the number of inputs that theirs has, and which of them each of ours is."""

    width: int
    source: Array  # −1 if there is none


@dataclass
class Translated:
    """A policy of ours: settings and weights."""

    settings: dict[str, object] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fresh_critic: bool = False  # the critic's weights are not there


class Translator:
    """Follows a model's `ActorCriticPolicy` from the observation to its heads."""

    def __init__(
        self, model: SavedModel, known: Hyperparameters, theirs: GymSpace, layout: RowLayout, actions: GymSpace
    ) -> None:
        self.model, self.known, self.layout, self.actions = model, known, layout, actions
        self.reader = FeatureReader(model, theirs, layout, divided=known.flag("normalize_images", True))
        self.images = any(leaf.kind == "image" for leaf in layout.leaves)
        self.found = Translated()

    def translate(self) -> Translated:
        found, settings = self.found, self.found.settings
        settings["activation"] = activation(self.known)
        pi, vf = self._widths("mlp_extractor.policy_net"), self._widths("mlp_extractor.value_net")
        actor, critic, shared = self._features()
        if self.images:
            settings["encoder"] = "nature"
        if self.reader.embedding_size is not None:
            settings["embedding_size"] = self.reader.embedding_size
        together = self.images and shared and not pi and not vf and self.known.kind != "recurrent"
        settings["shared_trunk"] = together
        settings["hidden_sizes"] = pi
        if not together and vf != pi:
            settings["critic_hidden_sizes"] = vf or None
            found.fresh_critic = not vf
        found.arrays |= {f"encoder.{name}": array for name, array in actor.encoder.items()}
        if self.known.kind == "recurrent":
            of_actor, of_critic = self._memory(actor, critic, shared)
        else:
            of_actor, of_critic = (Inputs(features.width, features.source) for features in (actor, critic))
            if not together:
                found.arrays |= {f"critic_encoder.{name}": array for name, array in critic.encoder.items()}
            if shared and actor.encoder and not together:
                found.notes.append("actor and critic shared their encoder; here each goes on with a copy of its own")
        self._mlp("actor", "mlp_extractor.policy_net", len(pi), "action_net", of_actor)
        self._mlp("critic", "mlp_extractor.value_net", len(vf), "value_net", of_critic)
        self._spread(Inputs(pi[-1], np.arange(pi[-1])) if pi else of_actor)
        if left := [name for name in self.model.weights.left if not name.startswith("pi_features_extractor.")]:
            raise UsageError(f"it has weights of a network that is not known: {min(left)}")
        if found.fresh_critic:
            for name in [name for name in found.arrays if name.startswith(("critic.", "critic_encoder."))]:
                del found.arrays[name]
            found.notes.append("its critic has no counterpart here; a new one starts untrained")
        return found

    def _features(self) -> tuple[Features, Features, bool]:
        """(the actor's, the critic's, whether they are the same)."""
        actor = self.reader.read("features_extractor")
        if not any(name.startswith("vf_features_extractor.") for name in self.model.shapes):
            return actor, actor, True
        critic = self.reader.read("vf_features_extractor")
        if actor.width != critic.width:
            raise Misfit("its actor and its critic have different features")
        same = all(np.array_equal(array, critic.encoder[name]) for name, array in actor.encoder.items())
        return actor, critic, same

    def _widths(self, name: str) -> tuple[int, ...]:
        """The widths of the hidden layers; activations are between them."""
        widths: list[int] = []
        while (shape := self.model.shapes.get(f"{name}.{2 * len(widths)}.weight")) is not None:
            if len(shape) != 2:
                raise Misfit(f"{name}.{2 * len(widths)}.weight has the shape {shape}")
            widths.append(shape[0])
        return tuple(widths)

    def _linear(self, name: str, inputs: int) -> tuple[Array, Array]:
        outputs = self.model.shapes.get(f"{name}.bias", (0,))
        weight = self.model.weights.take(f"{name}.weight", (*outputs, inputs))
        return weight, self.model.weights.take(f"{name}.bias", outputs)

    def _mlp(self, ours: str, theirs: str, hidden: int, head: str, inputs: Inputs) -> None:
        width = inputs.width
        for number, name in enumerate([*(f"{theirs}.{2 * index}" for index in range(hidden)), head]):
            weight, bias = self._linear(name, width)
            self.found.arrays[f"{ours}.layers.{number}.weight"] = (
                gather(weight, inputs.source) if not number else weight
            )
            self.found.arrays[f"{ours}.layers.{number}.bias"] = bias
            width = len(bias)

    def _memory(self, actor: Features, critic: Features, shared: bool) -> tuple[Inputs, Inputs]:
        """The inputs of the actor's MLP and of the critic's. An LSTM of each becomes one LSTM of both."""
        found, shapes = self.found, self.model.shapes
        own = self._lstm("lstm_actor", actor)
        hidden = own["weight_hh_l0"].shape[1]
        simple = Inputs(hidden, np.arange(hidden))
        found.settings |= {"memory": "lstm", "memory_size": hidden}
        if "lstm_critic.weight_hh_l0" not in shapes:
            if "critic.weight" in shapes:
                self._linear("critic", critic.width)
                found.fresh_critic = True
            else:
                found.notes.append("only its actor trained the shared LSTM; from here on, the critic does so too")
        elif (other := self._lstm("lstm_critic", critic))["weight_hh_l0"].shape != own["weight_hh_l0"].shape:
            raise Misfit("its two LSTMs have different sizes")
        elif not shared:
            found.fresh_critic = True
        else:
            own = {name: _side_by_side(name, array, other[name]) for name, array in own.items()}
            found.settings["memory_size"] = 2 * hidden
            found.notes.append(f"its two LSTMs of {hidden} units are one of {2 * hidden} here, with zeros between them")
            none = np.full(hidden, -1)
            actor_inputs = Inputs(hidden, np.concatenate([simple.source, none]))
            found.arrays |= {f"memory.net.{name}": array for name, array in own.items()}
            return actor_inputs, Inputs(hidden, np.concatenate([none, simple.source]))
        found.arrays |= {f"memory.net.{name}": array for name, array in own.items()}
        return simple, simple

    def _lstm(self, name: str, features: Features) -> dict[str, Array]:
        gates, hidden = self.model.shapes.get(f"{name}.weight_hh_l0", (0, 0))[-2:]
        shapes = {"weight_ih_l0": (gates, features.width), "weight_hh_l0": (GATES * hidden, hidden)}
        found = {part: self.model.weights.take(f"{name}.{part}", shapes.get(part, (gates,))) for part in LSTM}
        found["weight_ih_l0"] = gather(found["weight_ih_l0"], features.source)
        return found

    def _spread(self, inputs: Inputs) -> None:
        """The standard deviation of continuous actions. `inputs`: those of the actor's last layer."""
        if not isinstance(self.actions, spaces.Box):
            return
        size, settings = int(np.prod(self.actions.shape)), self.found.settings
        if self.model.data.get("use_sde") is not True:
            self.found.arrays["log_std"] = self.model.weights.take("log_std", (size,))
            return
        columns = size if self.known.flag("full_std", True) else 1
        log_std = np.broadcast_to(self.model.weights.take("log_std", (inputs.width, columns)), (inputs.width, size))
        if self.known.flag("use_expln", False):
            log_std = np.where(log_std > 0, np.log(np.log1p(np.maximum(log_std, 0)) + 1), log_std)
        self.found.arrays["log_std"] = np.ascontiguousarray(gather(log_std.T, inputs.source).T)
        settings["std"] = "gsde"
        often = self.model.data.get("sde_sample_freq", -1)
        if isinstance(often, int) and often > 0:
            settings["sde_resample"] = often
        if self.known.flag("squash_output", False):
            settings["action_bounds"] = "tanh"


def _side_by_side(name: str, actor: Array, critic: Array) -> Array:
    """Two LSTMs as one, gate by gate; neither sees what the other remembers."""
    gates = []
    for own, other in zip(np.split(actor, GATES), np.split(critic, GATES), strict=True):
        if name == "weight_hh_l0":
            own, other = np.pad(own, ((0, 0), (0, len(own)))), np.pad(other, ((0, 0), (len(other), 0)))
        gates += [own, other]
    return np.concatenate(gates)
