// Action distributions on tiles: parameters from a network's outputs, draws, log π(a|s), entropy, KL, their gradients.
//
// A distribution is a list of independent parts; a Categorical has one, a MultiCategorical or a hybrid several.
#pragma once
#include <vector>

#include "vec.hpp"

namespace surefoot {

enum PartKind { CATEGORICAL = 0, BERNOULLI = 1, GAUSSIAN = 2 };
constexpr float LOG_STD_LOW = -20.0f, LOG_STD_HIGH = 5.0f;
constexpr float STD_LOW = 2.061153622438558e-09f;  // e^−20
constexpr float MASKED = -1.7014117331926443e+38f;  // half the lowest float: probability 0, and finite
constexpr float LOG_2PI = 1.8378770664093453f;

struct Part {
  int kind, size;               // choices, bits or dimensions
  int output, param, action, noise, mask;  // first column of each; mask −1: none
  int64_t log_std;              // in the parameter vector; −1: the network gives the std
  int64_t shard;                // of log_std's gradient
  std::vector<float> centre, half;  // of a mean squashed into them; empty: as it is
  int params() const { return kind == GAUSSIAN ? 2 * size : size; }
  int outputs() const { return kind == GAUSSIAN && log_std < 0 ? 2 * size : size; }
};

struct Head {
  std::vector<Part> parts;
  int outputs = 0, params = 0, actions = 0, noises = 0, masks = 0;
};

// `slope`: d(param)/d(output) of Gaussian columns, kept for the way back.
static inline void params_from(const Part& part, const float* theta, const vec* out, const vec* mask, vec* param,
                               vec* slope) {
  out += part.output, param += part.param, slope += part.param;
  const int n = part.size;
  if (part.kind != GAUSSIAN) {
    for (int i = 0; i < n; i++) param[i] = part.mask >= 0 && mask ? (mask[part.mask + i] > 0.5f ? out[i] : all(MASKED)) : out[i];
    return;
  }
  for (int i = 0; i < n; i++) {
    param[i] = out[i], slope[i] = all(1.0f);
    if (!part.half.empty()) {
      vec h, d;
      vtanh(out[i], h, d);
      param[i] = part.centre[i] + part.half[i] * h, slope[i] = part.half[i] * d;
    }
    if (part.log_std >= 0) {
      float raw = theta[part.log_std + i], kept = raw < LOG_STD_LOW ? LOG_STD_LOW : raw > LOG_STD_HIGH ? LOG_STD_HIGH : raw;
      param[n + i] = all(kept), slope[n + i] = all(raw == kept ? 1.0f : 0.0f);
    } else {
      vec std = softplus(out[n + i]);
      vec kept = vmax(std, all(STD_LOW));
      // log of it in scalars: softplus may be denormal-small where vlog wants normal numbers
      for (int l = 0; l < LANES; l++) param[n + i][l] = std::log(kept[l]);
      slope[n + i] = std < STD_LOW ? vec{} : sigmoid(out[n + i]) / kept;
    }
  }
}

static inline void draw(const Part& part, const vec* param, const vec* noise, vec* action) {
  param += part.param, action += part.action;
  if (noise) noise += part.noise;
  const int n = part.size;
  if (part.kind == CATEGORICAL) {
    vec best = noise ? param[0] + noise[0] : param[0], at = vec{};
    for (int i = 1; i < n; i++) {
      vec score = noise ? param[i] + noise[i] : param[i];
      ivec better = score > best;
      best = better ? score : best, at = better ? all((float)i) : at;
    }
    action[0] = at;
  } else if (part.kind == BERNOULLI) {
    for (int i = 0; i < n; i++) action[i] = (noise ? param[i] + noise[i] : param[i]) > 0.0f ? all(1.0f) : vec{};
  } else {
    for (int i = 0; i < n; i++) action[i] = noise ? param[i] + vexp(param[n + i]) * noise[i] : param[i];
  }
}

// log softmax of `n` rows into `logp`; probabilities into `p`.
static inline void log_softmax(const vec* z, int n, vec* logp, vec* p) {
  vec top = z[0];
  for (int i = 1; i < n; i++) top = vmax(top, z[i]);
  vec total = vec{};
  for (int i = 0; i < n; i++) p[i] = vexp(z[i] - top), total += p[i];
  vec shift = top + vlog(total), scale = 1.0f / total;
  for (int i = 0; i < n; i++) logp[i] = z[i] - shift, p[i] = p[i] * scale;
}

struct HeadScratch {
  std::vector<vec> param, slope, logp, p, old, old_logp, old_p, action, noise, mask, d_out;
  void prepare(const Head& head) {
    int n = head.params > head.outputs ? head.params : head.outputs;
    for (auto* rows : {&param, &slope, &logp, &p, &old, &old_logp, &old_p, &d_out}) rows->resize(n + 1);
    action.resize(head.actions + 1), noise.resize(head.noises + 1), mask.resize(head.masks + 1);
  }
};

// What `gradient` needs of a part, and its share of log π(a|s), of the entropy and of KL(old‖new), added to each.
static inline void measure(const Part& part, HeadScratch& s, bool with_old, vec& log_prob, vec& entropy, vec& kl) {
  const int n = part.size, at = part.param;
  const vec *param = &s.param[at], *action = &s.action[part.action];
  vec *logp = &s.logp[at], *p = &s.p[at], *old = &s.old[at], *old_logp = &s.old_logp[at], *old_p = &s.old_p[at];
  if (part.kind == CATEGORICAL) {
    log_softmax(param, n, logp, p);
    vec chosen = logp[0], h = vec{};
    for (int i = 0; i < n; i++) {
      chosen = action[0] == (float)i ? logp[i] : chosen;
      h -= p[i] * logp[i];
    }
    log_prob += chosen, entropy += h;
    if (!with_old) return;
    log_softmax(old, n, old_logp, old_p);
    for (int i = 0; i < n; i++) kl += old_p[i] * (old_logp[i] - logp[i]);
  } else if (part.kind == BERNOULLI) {
    for (int i = 0; i < n; i++) {
      vec one = -softplus(-param[i]), zero = -softplus(param[i]);
      p[i] = sigmoid(param[i]);
      log_prob += action[i] > 0.5f ? one : zero;
      vec q = sigmoid(-param[i]);
      entropy -= p[i] * one + q * zero;
      if (!with_old) continue;
      old_p[i] = sigmoid(old[i]);
      kl += old_p[i] * (-softplus(-old[i]) - one) + sigmoid(-old[i]) * (-softplus(old[i]) - zero);
    }
  } else {
    for (int i = 0; i < n; i++) {
      vec scaled = (action[i] - param[i]) * vexp(-param[n + i]);
      logp[i] = scaled;
      log_prob -= 0.5f * scaled * scaled + param[n + i] + 0.5f * LOG_2PI;
      entropy += param[n + i] + 0.5f * (1.0f + LOG_2PI);
      if (!with_old) continue;
      vec ratio = vexp(2.0f * (old[n + i] - param[n + i]));
      vec distance = (old[i] - param[i]) * vexp(-param[n + i]);
      kl += param[n + i] - old[n + i] + 0.5f * (ratio + distance * distance - 1.0f);
    }
  }
}

// d(outputs) of a part from the loss's derivatives with respect to log π, entropy and KL. `log_std`: its gradient's sum.
static inline void gradient(const Part& part, HeadScratch& s, bool with_old, vec of_log_prob, vec of_entropy, vec of_kl,
                            float* shard) {
  const int n = part.size, at = part.param;
  const vec *param = &s.param[at], *action = &s.action[part.action];
  const vec *logp = &s.logp[at], *p = &s.p[at], *old = &s.old[at], *old_p = &s.old_p[at];
  vec* out = &s.d_out[part.output];
  if (part.kind == CATEGORICAL) {
    vec h = vec{};
    for (int i = 0; i < n; i++) h -= p[i] * logp[i];
    for (int i = 0; i < n; i++) {
      vec chosen = action[0] == (float)i ? all(1.0f) : vec{};
      vec d = of_log_prob * (chosen - p[i]) - of_entropy * p[i] * (logp[i] + h);
      if (with_old) d += of_kl * (p[i] - old_p[i]);
      out[i] = part.mask >= 0 && !s.mask.empty() ? (s.mask[part.mask + i] > 0.5f ? d : vec{}) : d;
    }
  } else if (part.kind == BERNOULLI) {
    for (int i = 0; i < n; i++) {
      vec q = sigmoid(-param[i]);
      // σ(l)(1 − σ(l)) with both factors from their own side, so that neither is 1 − 1
      vec d = of_log_prob * (action[i] > 0.5f ? q : -p[i]) - of_entropy * param[i] * p[i] * q;
      if (with_old) d += of_kl * (p[i] - old_p[i]);
      out[i] = d;
    }
  } else {
    for (int i = 0; i < n; i++) {
      vec inverse = vexp(-param[n + i]), scaled = logp[i];
      vec mean = of_log_prob * scaled * inverse;
      vec log_std = of_log_prob * (scaled * scaled - 1.0f) + of_entropy;
      if (with_old) {
        vec distance = (param[i] - old[i]) * inverse, ratio = vexp(2.0f * (old[n + i] - param[n + i]));
        mean += of_kl * distance * inverse;
        log_std += of_kl * (1.0f - ratio - distance * distance);
      }
      out[i] = mean * s.slope[at + i];
      log_std *= s.slope[at + n + i];
      if (part.log_std >= 0)
        shard[part.shard + i] += sum_of(log_std);
      else
        out[n + i] = log_std;
    }
  }
}

// The Fisher matrix of the distribution times a tangent of its outputs (and of log_std); the result goes to d_out.
static inline void fisher(const Part& part, const float* direction, HeadScratch& s, const vec* tangent, vec weight,
                          float* shard) {
  const int n = part.size, at = part.param;
  tangent += part.output;
  vec* out = &s.d_out[part.output];
  if (part.kind == CATEGORICAL) {
    vec mean = vec{};
    const bool masked = part.mask >= 0 && !s.mask.empty();
    auto seen = [&](int i) { return masked ? (s.mask[part.mask + i] > 0.5f ? tangent[i] : vec{}) : tangent[i]; };
    for (int i = 0; i < n; i++) mean += s.p[at + i] * seen(i);
    for (int i = 0; i < n; i++) out[i] = weight * s.p[at + i] * (seen(i) - mean);
  } else if (part.kind == BERNOULLI) {
    for (int i = 0; i < n; i++) out[i] = weight * s.p[at + i] * sigmoid(-s.param[at + i]) * tangent[i];
  } else {
    for (int i = 0; i < n; i++) {
      vec slope = s.slope[at + i], precision = vexp(-2.0f * s.param[at + n + i]);
      out[i] = weight * slope * precision * slope * tangent[i];
      vec of_std = s.slope[at + n + i];
      if (part.log_std >= 0) {
        shard[part.shard + i] += sum_of(weight * of_std * of_std * 2.0f * direction[part.log_std + i]);
      } else {
        out[n + i] = weight * of_std * 2.0f * of_std * tangent[n + i];
      }
    }
  }
}

}  // namespace surefoot
