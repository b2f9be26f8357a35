"""Describes the policy of a checkpoint as a `Program`. Reads files only: no torch, no Gymnasium, no code of the run."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy.heads import describe_heads, num_outputs
from surefoot.deploy.pictures import describe_picture
from surefoot.deploy.program import (
    Activate,
    At,
    Embed,
    Exploration,
    Gru,
    Join,
    LayerNorm,
    Linear,
    Lstm,
    Normalize,
    OneHot,
    Operation,
    Program,
    Remembered,
    Row,
    Slice,
)
from surefoot.deploy.weights import Weights, WrongWeights
from surefoot.errors import CheckpointError, SurefootError, UsageError
from surefoot.math.constants import LEAST_VARIANCE, LOG_STD_RANGE
from surefoot.policies.plans import is_embedded, needs_encoder, shares_trunk
from surefoot.policies.privileged import divided, seen_space
from surefoot.runs.checkpoints import read_verified
from surefoot.spaces import plain
from surefoot.spaces.masks import ActionMasks
from surefoot.spaces.rows import RowLayout
from surefoot.training.evaluation.facts import (
    WRONG_CONTENT,
    PolicyFacts,
    policy_config,
    read_facts,
    unbuildable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from surefoot.policies.config import PolicyConfig
    from surefoot.spaces.rows import Leaf


def read_program(folder: Path) -> Program:
    """The policy of a checkpoint whose bytes are intact; CheckpointError if it describes none of ours."""
    files = read_verified(folder)[1]
    facts = read_facts(folder, files)
    config = policy_config(folder, facts)
    if config.own_encoder:
        raise UsageError(
            f"the policy of {folder} has an encoder of its own ({config.encoder}), which only PyTorch can execute; "
            "load it with surefoot.load(run, trust=True)"
        )
    weights = Weights.read(folder, files)
    try:
        program = Builder(facts, config, weights).build()
        weights.require_all_taken()
    except WrongWeights as error:
        file = folder / "policy.safetensors"
        raise CheckpointError(f"the weights in {file} do not fit their description: {error}") from None
    except (*WRONG_CONTENT, SurefootError) as error:  # RecursionError is a RuntimeError
        raise unbuildable(folder, error) from None
    return program


class Builder:
    """Follows `ActorCritic` from the observation to the heads and writes down what it does."""

    def __init__(self, facts: PolicyFacts, config: PolicyConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.action_space = plain.from_json(facts["action_space"])
        mask_size = ActionMasks(self.action_space).size if facts["masked"] else 0
        self.whole = self.layout = RowLayout(plain.from_json(facts["observation_space"]), mask_size)
        self.seen: set[str] = {leaf.path for leaf in self.whole.leaves}
        if config.critic_obs:  # what only the critic sees is no part of the program
            self.seen = {leaf.path for leaf in divided(self.whole, config.critic_obs)[0]}
            space = seen_space(self.whole.tree, self.seen)
            assert space is not None
            self.layout = RowLayout(space, mask_size)
        spans = {leaf.path: leaf.span for leaf in self.whole.leaves}
        self.columns = np.concatenate([np.arange(self.whole.numbers)[spans[leaf.path]] for leaf in self.layout.leaves])
        self.operations: list[Operation] = []

    def add(self, operation: Operation) -> At:
        self.operations.append(operation)
        return len(self.operations) - 1

    def size(self, at: At) -> int:
        return self.operations[at].size

    def linear(self, x: At, name: str, outputs: int) -> At:
        weight = self.weights.take(f"{name}.weight", (outputs, self.size(x)))
        return self.add(Linear(x, weight, self.weights.take(f"{name}.bias", (outputs,))))

    def hidden(self, x: At, name: str, number: int, width: int) -> At:
        """A hidden layer of the MLP of this name."""
        x = self.linear(x, f"{name}.layers.{number}", width)
        if self.config.layer_norm:
            gain, bias = (self.weights.take(f"{name}.norms.{number}.{what}", (width,)) for what in ("weight", "bias"))
            x = self.add(LayerNorm(x, gain, bias))
        return self.activate(x)

    def activate(self, x: At) -> At:
        return self.add(Activate(x, self.config.activation, self.size(x)))

    def build(self) -> Program:
        features = self._encode(self._normalize(self.add(Row(self.layout.numbers))))
        memory, features = self._remember(features)
        hidden_sizes = self.config.hidden_sizes
        if shares_trunk(self.config, self.layout):
            for number, width in enumerate(hidden_sizes):
                features = self.hidden(features, "trunk", number, width)
            hidden_sizes = ()
        for number, width in enumerate(hidden_sizes):
            features = self.hidden(features, "actor", number, width)
        outputs = num_outputs(self.action_space, self.config)
        logits = self.linear(features, f"actor.layers.{len(hidden_sizes)}", outputs)
        heads, log_std = describe_heads(self, features, logits)
        exploration = None
        if log_std is not None and self.config.std == "gsde":
            clipped = np.clip(log_std, *LOG_STD_RANGE).astype(np.float32)
            exploration = Exploration(features, clipped, self.config.sde_resample)
        columns = self.columns if self.config.critic_obs else None
        return Program(self.layout, self.action_space, tuple(self.operations), heads, memory, exploration, columns)

    def _normalize(self, row: At) -> At:
        """Images are never normalised, and a single image has no row of numbers to normalise."""
        vectors = any(leaf.kind == "vector" for leaf in self.whole.leaves)
        if not self.config.normalize_observations or not vectors:
            return row
        shape = self.whole.shape
        mean = self.weights.take("normalizer.mean", shape, "float64").reshape(-1)[self.columns]
        variance = self.weights.take("normalizer.var", shape, "float64", 0.0).reshape(-1)[self.columns]
        self.weights.take("normalizer.count", (), "float64", 0.0)
        active = np.zeros(self.layout.numbers, np.float32)
        for leaf in self.layout.leaves:
            active[leaf.span] = float(leaf.kind == "vector")
        scale = (1.0 / np.sqrt(variance + LEAST_VARIANCE)).astype(np.float32)
        return self.add(Normalize(row, mean.astype(np.float32), scale, active))

    def _encode(self, row: At) -> At:
        leaves = [leaf for leaf in self.layout.leaves if leaf.path in self.seen]
        if not needs_encoder(self.whole) and len(leaves) == len(self.layout.leaves):
            return row
        parts = tuple(self._encode_leaf(row, leaf, number) for number, leaf in enumerate(leaves))
        return parts[0] if len(parts) == 1 else self.add(Join(parts, sum(map(self.size, parts))))

    def _encode_leaf(self, row: At, leaf: Leaf, number: int) -> At:
        x = row if leaf.size == self.layout.numbers else self.add(Slice(row, leaf.offset, leaf.size))
        name = f"encoder.encoders.{number}"
        if leaf.kind == "image":
            return describe_picture(self, x, leaf, name)
        if leaf.kind not in ("discrete", "multi_discrete"):
            return x
        if is_embedded(leaf):
            table = self.weights.take(f"{name}.table.weight", (sum(leaf.sizes), self.config.embedding_size))
            offset = np.array([0, *accumulate(leaf.sizes[:-1])], np.int64)
            return self.add(Embed(x, table, offset, np.array(leaf.sizes, np.int64) - 1))
        component = np.repeat(np.arange(len(leaf.sizes)), leaf.sizes)
        return self.add(OneHot(x, component, np.concatenate([np.arange(size) for size in leaf.sizes])))

    def _remember(self, features: At) -> tuple[At | None, At]:
        """(the new memory, the features that are read from it)."""
        if self.config.memory == "none":
            return None, features
        hidden, is_lstm = self.config.memory_size, self.config.memory == "lstm"
        gates = (4 if is_lstm else 3) * hidden
        before = self.add(Remembered(2 * hidden if is_lstm else hidden))
        arrays = [
            self.weights.take(f"memory.net.{name}_l0", shape)
            for name, shape in {
                "weight_ih": (gates, self.size(features)),
                "weight_hh": (gates, hidden),
                "bias_ih": (gates,),
                "bias_hh": (gates,),
            }.items()
        ]
        after = self.add((Lstm if is_lstm else Gru)(features, before, *arrays))
        return after, self.add(Slice(after, 0, hidden)) if is_lstm else after
