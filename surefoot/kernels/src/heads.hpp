// Action distributions on tiles: a head is a list of independent parts; a Categorical has one, a MultiCategorical or a
// hybrid several. Each kind of part is a struct with the same few methods:
//
//   outputs, params, actions, noises   the number of its columns in the network's outputs, stored parameters, …
//   params_from                        the distribution's parameters from the network's outputs
//   draw                               an action from pre-drawn noise; without noise, the mode
//   sent                               the action to send to the env, within bounds
//   measure                            adds log π(a|s), entropy and KL(old‖new); keeps what the next one needs
//   gradient                           d(outputs) from the loss's derivatives with respect to those three
//   fisher                             the Fisher matrix times a tangent of the outputs (and of log_std), as d(outputs)
#pragma once
#include <algorithm>

#include "head_beta.hpp"
#include "head_discrete.hpp"
#include "head_gaussian.hpp"

namespace surefoot {

// Calls `call` with the part as its own kind.
template <typename Call>
static inline auto with_kind(const Part& part, const Call& call) {
  switch (part.kind) {
    case CATEGORICAL: return call(Categorical{part});
    case BERNOULLI: return call(Bernoulli{part});
    case GAUSSIAN: return call(Gaussian{part});
    case TANH_GAUSSIAN: return call(TanhGaussian{{part}});
    default: return call(Beta{part});
  }
}

struct Head {
  std::vector<Part> parts;
  int outputs = 0, params = 0, actions = 0, noises = 0, masks = 0;

  void add(const Part& part) {
    parts.push_back(part);
    with_kind(part, [&](const auto& kind) {
      outputs = std::max(outputs, part.output + kind.outputs());
      params = std::max(params, part.param + kind.params());
      actions = std::max(actions, part.action + kind.actions());
      noises = std::max(noises, part.noise + kind.noises());
    });
  }

  void prepare(HeadScratch& s) const {
    const int n = std::max(params, outputs);
    for (auto* rows : {&s.param, &s.slope, &s.logp, &s.p, &s.old, &s.old_logp, &s.old_p, &s.d_out}) rows->resize(n + 1);
    s.action.resize(actions + 1), s.noise.resize(noises + 1), s.mask.resize(masks + 1);
  }

  // `out`: the actor's outputs for a tile; the mask is in the scratch.
  void params_from(const float* theta, const vec* out, HeadScratch& s) const {
    const vec* mask = masks ? s.mask.data() : nullptr;
    each([&](const auto& kind, const Part& part) {
      kind.params_from(theta, out + part.output, mask, &s.param[part.param], &s.slope[part.param]);
    });
  }
  void draw(bool with_noise, HeadScratch& s) const {
    each([&](const auto& kind, const Part& part) {
      kind.draw(&s.param[part.param], with_noise ? &s.noise[part.noise] : nullptr, &s.action[part.action]);
    });
  }
  // For a head of one part with one action.
  float sent(float action, float low, float high) const {
    return with_kind(parts[0], [&](const auto& kind) { return kind.sent(action, low, high); });
  }
  Measures measure(bool with_old, HeadScratch& s) const {
    Measures found;
    each([&](const auto& kind, const Part&) { kind.measure(s, with_old, found); });
    return found;
  }
  // `shard`: receives the gradients of log_std.
  void gradient(bool with_old, const Slopes& of, HeadScratch& s, float* shard) const {
    each([&](const auto& kind, const Part&) { kind.gradient(s, with_old, of, shard); });
  }
  void fisher(const float* direction, const vec* tangent, vec weight, HeadScratch& s, float* shard) const {
    each([&](const auto& kind, const Part& part) { kind.fisher(direction, s, tangent + part.output, weight, shard); });
  }

 private:
  template <typename Body>
  void each(const Body& body) const {
    for (const Part& part : parts) with_kind(part, [&](const auto& kind) { body(kind, part); });
  }
};

}  // namespace surefoot
