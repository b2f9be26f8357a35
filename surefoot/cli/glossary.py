"""The words of the field: meaning, formula, and where to see it. `surefoot explain` and the site show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One entry. Settings, metrics and algorithms of the same name are explained after it."""

    name: str
    meaning: str
    formula: str = ""
    also: tuple[str, ...] = ()  # other names
    see: tuple[str, ...] = ()  # commands that show it
    answers: tuple[int, ...] = ()  # the homework's warm-up questions that it answers


WORDS = (
    Word(
        "mdp",
        "A Markov decision process: a sequential decision problem with four parts, states S, actions A, transition "
        "probabilities P and rewards r. A discount γ and a distribution of first states complete it.",
        "(S, A, P(s'|s, a), r(s, a, s'))",
        ("markov_decision_process", "state", "transition", "reward"),
        ("surefoot theory bound --world random",),
        (1,),
    ),
    Word(
        "markov_property",
        "The next state depends only on the current state and action, not on how the agent came here. Where a single "
        "observation does not tell the whole state, stack frames or give the policy a memory.",
        "P(s_{t+1} | s_t, a_t, s_{t-1}, a_{t-1}, …) = P(s_{t+1} | s_t, a_t)",
        ("markov",),
        (),
        (2,),
    ),
    Word(
        "objective",
        "What policy-gradient methods maximise: the expected sum of discounted rewards when the policy acts. The "
        "lecture calls it η, the homework J.",
        "J(π_θ) = η(π_θ) = E[ Σ_{t≥0} γ^t · r_t ],    a_t drawn from π_θ(·|s_t)",
        ("expected_return", "eta", "j"),
        ("surefoot theory surrogate",),
        (3,),
    ),
    Word(
        "return",
        "The discounted sum of the rewards from step t to the end of the episode, also called reward to go. It "
        "restarts at the end of an episode. `episode_return` is the plain sum over a whole episode, without a "
        "discount.",
        "R_t = r_t + γ·r_{t+1} + γ²·r_{t+2} + … = r_t + γ·R_{t+1}",
        ("reward_to_go", "episode_return", "returns"),
    ),
    Word(
        "policy_gradient",
        "Shorthand for the gradient of the expected return with respect to the policy's parameters θ. It says in which "
        "direction, and how strongly, each parameter must change so that the agent collects more reward: actions that "
        "were followed by much reward become more likely.",
        "∇_θ J(θ) = E[ Σ_t ∇_θ log π_θ(a_t|s_t) · R_t ]\n"
        "         ≈ 1/N · Σ_i Σ_t ∇_θ log π_θ(a_{i,t}|s_{i,t}) · R_{i,t}    from N sampled episodes: REINFORCE",
        ("gradient", "score_function"),
        ("surefoot explain reinforce", "surefoot theory baseline"),
        (4, 5, 6),
    ),
    Word(
        "baseline",
        "A function b(s) of the state that is subtracted from the return. It introduces no bias, because the "
        "probabilities of all actions sum to 1 and so their gradients sum to 0. It removes much of the variance; "
        "V(s) is close to the best choice.",
        "E_a[ ∇ log π(a|s) · b(s) ] = b(s) · ∇ Σ_a π(a|s) = b(s) · ∇ 1 = 0",
        ("baselines",),
        ("surefoot theory baseline",),
        (7,),
    ),
    Word(
        "on_policy",
        "Learning only from data that the current policy collected. All algorithms here are on-policy. They use no "
        "replay buffer: a replay buffer holds steps of older policies, whose returns say little about this one. "
        "After an update the rollout is thrown away.",
        also=("off_policy", "replay_buffer"),
        answers=(8,),
    ),
    Word(
        "policy",
        "The rule by which the agent acts. π_θ(a_t|s_t) is the probability (for continuous actions the density) of "
        "taking action a_t in state s_t, given by a network with parameters θ.",
        "π_θ(a|s) ≥ 0,    Σ_a π_θ(a|s) = 1",
        ("pi", "π", "theta", "θ", "actor"),
        (),
        (9,),
    ),
    Word(
        "log_prob",
        "The natural logarithm of a probability. For heads of a fair coin it is ln 0.5 = −0.6931. Products of "
        "probabilities become sums, small numbers stay representable, and its gradient is the score that policy "
        "gradients use.",
        "log π_θ(a|s);    in PyTorch:  actions = distribution.sample();  log_probs = distribution.log_prob(actions)",
        ("log_probability", "log_probs", "score"),
        (),
        (10, 14),
    ),
    Word(
        "ratio",
        "How much more likely the new policy makes an action than the policy that took it. Computed from logarithms, "
        "because A/B = exp(log A − log B) does not overflow on the way. In the first minibatch of an update it is 1.",
        "r_t(θ) = π_θ(a_t|s_t) / π_old(a_t|s_t) = exp( log π_θ(a_t|s_t) − log π_old(a_t|s_t) )",
        ("probability_ratio", "importance_sampling", "importance_weight"),
        ("surefoot theory clip",),
        (11,),
    ),
    Word(
        "logit",
        "A raw output of the network, one for each action, before the softmax turns them into probabilities. Only the "
        "differences of logits matter.",
        "π(a|s) = exp(z_a) / Σ_b exp(z_b)",
        ("logits", "softmax"),
        (),
        (12,),
    ),
    Word(
        "categorical",
        "The distribution over a finite number of choices, each with its own probability: discrete. It is built from "
        "logits and serves Discrete action spaces. Its continuous counterpart here is the Gaussian.",
        "distribution = Categorical(logits=policy(obs));  action = distribution.sample();  "
        "distribution.log_prob(action)",
        ("categorical_distribution", "discrete"),
        (),
        (13, 14),
    ),
    Word(
        "gaussian",
        "The normal distribution, for continuous actions: the network gives the mean, and a learned standard deviation "
        "sets how much is explored.",
        "log π(a|s) = −½·((a − μ)/σ)² − log σ − ½·log 2π, summed over the dimensions of the action",
        ("normal", "continuous", "log_std", "std"),
    ),
    Word(
        "cartpole",
        "CartPole-v1: balance a pole on a cart. The state is continuous, four numbers: position and velocity of the "
        "cart, angle and angular velocity of the pole. The action is discrete, two choices: push left (0) or right "
        "(1). Each step pays 1; the pole falling terminates the episode, 500 steps truncate it.",
        also=("cartpole_v1",),
        see=("surefoot doctor CartPole-v1", "surefoot train CartPole-v1"),
        answers=(15,),
    ),
    Word(
        "value",
        "V(s), the expected discounted return from state s on. The critic estimates it.",
        "V_π(s) = E_π[ R_t | s_t = s ] = E_a[ Q_π(s, a) ]",
        ("v", "critic", "state_value", "value_function"),
    ),
    Word(
        "action_value",
        "Q(s, a), the expected discounted return after taking action a in state s and following the policy from then "
        "on.",
        "Q_π(s, a) = E[ r_t + γ·V_π(s_{t+1}) | s_t = s, a_t = a ]",
        ("q", "q_value"),
    ),
    Word(
        "advantage",
        "How much better an action is than what the policy does on average in that state. Positive: make it more "
        "likely. Negative: less likely. Zero: no change. In practice it is estimated, by GAE.",
        "A_π(s, a) = Q_π(s, a) − V_π(s),    E_a[ A_π(s, a) ] = 0",
        ("advantages",),
        ("surefoot explain gae",),
    ),
    Word(
        "td_error",
        "The one-step surprise of the critic: what it sees after a step, minus what it had predicted. The next state's "
        "value is left out where the episode terminated, and kept where a time limit truncated it.",
        "δ_t = r_t + γ·V(s_{t+1})·[not terminated] − V(s_t)",
        ("delta", "td", "temporal_difference"),
    ),
    Word(
        "gae",
        "Generalised advantage estimation: an exponentially weighted sum of TD errors. λ = 0 relies on the critic (low "
        "variance, biased by its errors); λ = 1 is the return minus V (unbiased, high variance). The sum stops at "
        "the end of an episode.",
        "Â_t = δ_t + γλ·δ_{t+1} + (γλ)²·δ_{t+2} + … = δ_t + γλ·[not done]·Â_{t+1}",
        ("generalised_advantage_estimation", "generalized_advantage_estimation", "gae_lambda", "lambda", "λ"),
        ("surefoot theory gae",),
    ),
    Word(
        "bootstrapping",
        "Replacing rewards that were not seen by the critic's estimate of them, at the end of a rollout or where a "
        "time limit cut an episode.",
        "R_t ≈ r_t + γ·V(s_{t+1})",
        ("bootstrap",),
    ),
    Word(
        "terminated",
        "The episode ended because the task is over: nothing can follow, so the next value is 0. See also: truncated.",
        also=("termination", "done", "terminal"),
        see=("surefoot doctor ENV",),
    ),
    Word(
        "truncated",
        "The episode was cut by a clock although the task could have gone on. Its last state has a future, which the "
        "critic estimates from the final observation. Treating it as terminated teaches wrong values.",
        also=("truncation", "time_limit"),
        see=("surefoot doctor ENV",),
    ),
    Word(
        "trajectory",
        "What an agent lives through: states, actions and rewards in order.",
        "τ = (s_0, a_0, r_0, s_1, a_1, r_1, …),    P(τ) = P(s_0)·Π_t π_θ(a_t|s_t)·P(s_{t+1}|s_t, a_t)",
        ("tau", "τ", "episode"),
    ),
    Word(
        "rollout",
        "The data of one update: T steps from each of N envs, collected with the current policy.",
        "T·N = rollout_length · num_envs samples",
        ("batch", "horizon"),
    ),
    Word(
        "discount",
        "γ: how much less a reward is worth for each step that it is later. 1/(1−γ) is the effective horizon in "
        "steps: 100 for γ = 0.99.",
        "Σ_t γ^t·r_t,    V = 1/(1−γ) for a reward of 1 in every step",
        ("gamma", "γ"),
    ),
    Word(
        "entropy",
        "How random the policy is. A bonus for it (`entropy_coef`) keeps the policy exploring; an entropy near 0 "
        "means that it has decided.",
        "H(π(·|s)) = −Σ_a π(a|s)·log π(a|s);    log n for n equally likely actions",
        ("entropy_coef", "exploration"),
    ),
    Word(
        "kl",
        "The Kullback-Leibler divergence: how far the new policy is from the old one, in nats. It is 0 only if they "
        "are equal, and it is not symmetric. Here the direction is always KL(old‖new).",
        "KL(π_old ‖ π_new) = E_{a∼π_old}[ log π_old(a|s) − log π_new(a|s) ]",
        ("kl_divergence", "kullback_leibler", "d_kl"),
        ("surefoot theory penalty",),
    ),
    Word(
        "total_variation",
        "Another distance between two distributions: half of the sum of all differences. Its square is at most half "
        "of the KL, which turns the first bound of the lecture into the second.",
        "D_TV(p, q) = ½·Σ_i |p_i − q_i|,    D_TV² ≤ ½·KL",
        ("tv", "d_tv"),
        ("surefoot theory bound",),
    ),
    Word(
        "performance_difference",
        "An exact identity: the return of a new policy is that of the old one plus the old advantages, met along the "
        "way of the new one.",
        "η(π̃) = η(π) + E_{τ∼π̃}[ Σ_t γ^t·A_π(s_t, a_t) ] = η(π) + Σ_s ρ_π̃(s)·Σ_a π̃(a|s)·A_π(s, a)",
        ("kakade_langford",),
        ("surefoot theory surrogate",),
    ),
    Word(
        "visitation",
        "How often a policy is in a state, later visits discounted.",
        "ρ_π(s) = P(s_0 = s) + γ·P(s_1 = s) + γ²·P(s_2 = s) + …",
        ("rho", "ρ", "state_visitation"),
    ),
    Word(
        "surrogate",
        "What is maximised instead of the return: the identity with the old policy's states, which are the ones that "
        "were sampled. At the old policy it has the same value and slope as the return; further away it is wrong.",
        "L_π(π̃) = η(π) + Σ_s ρ_π(s)·Σ_a π̃(a|s)·A_π(s, a);    sampled: E[ r_t(θ)·Â_t ]",
        also=("surrogate_objective",),
        see=("surefoot theory surrogate",),
    ),
    Word(
        "trust_region",
        "The set of policies close enough to the old one for the surrogate to be trusted. TRPO limits the KL, "
        "PPO-penalty charges for it, PPO-clip removes the incentive to leave.",
        "η(π̃) ≥ L_π(π̃) − C·max_s KL(π(·|s) ‖ π̃(·|s)),    C = 4·max|A|·γ/(1−γ)²",
        ("trusted_region", "bound", "lower_bound"),
        ("surefoot theory bound", "surefoot explain trpo"),
    ),
    Word(
        "clip",
        "PPO's way to stay near the old policy: a sample whose ratio is beyond 1±ε, on the side where its advantage "
        "pushes, has gradient 0. Its own push ends there; other samples may still move it, because they share weights.",
        "min( r_t·Â_t, clip(r_t, 1−ε, 1+ε)·Â_t )",
        ("clipping", "epsilon", "ε", "clip_ratio"),
        ("surefoot theory clip", "surefoot explain ppo"),
    ),
    Word(
        "penalty",
        "PPO-penalty's β: the price of a nat of KL. After each update it doubles if the KL was above 1.5δ and halves "
        "if it was below δ/1.5, until an update moves about δ.",
        "L(θ) = E[ r_t·Â_t − β·KL(π_old ‖ π_θ) ]",
        ("beta", "β", "kl_coef", "lagrange_multiplier"),
        ("surefoot theory penalty", "surefoot explain ppo-penalty"),
    ),
    Word(
        "fisher",
        "The curvature of the KL at the old policy. It measures a step of the parameters by how much the policy "
        "changes.",
        "F = ∇² E_s[ KL(π_old(·|s) ‖ π_θ(·|s)) ],    KL ≈ ½·ΔθᵀFΔθ",
        ("fisher_matrix", "natural_gradient"),
        ("surefoot explain npg",),
    ),
    Word(
        "actor_critic",
        "A method with two parts: the actor (the policy) acts, the critic (V) judges. The critic is used only for "
        "training.",
        see=("surefoot explain a2c",),
    ),
)
BY_NAME = {name: word for word in WORDS for name in (word.name, *word.also)}


def described(word: Word) -> str:
    """The entry as text for a terminal."""
    lines = [word.name.replace("_", " ") + (f" (also: {', '.join(word.also)})" if word.also else ""), "", word.meaning]
    if word.formula:
        lines += ["", *(f"    {line}" for line in word.formula.splitlines())]
    if word.see:
        lines += ["", "see: " + " · ".join(word.see)]
    return "\n".join(lines)
