// Choices and bits.
#pragma once
#include "head_parts.hpp"

namespace surefoot {

constexpr float MASKED = -1.7014117331926443e+38f;  // half the lowest float: probability 0, and finite

// log softmax of `n` rows into `logp`; probabilities into `p`.
static inline void log_softmax(const vec* z, int n, vec* logp, vec* p) {
  vec top = z[0];
  for (int i = 1; i < n; i++) top = vmax(top, z[i]);
  vec total = vec{};
  for (int i = 0; i < n; i++) p[i] = vexp(z[i] - top), total += p[i];
  vec shift = top + vlog(total), scale = 1.0f / total;
  for (int i = 0; i < n; i++) logp[i] = z[i] - shift, p[i] = p[i] * scale;
}

// One of `size` choices. Parameters: their logits.
struct Categorical {
  const Part& part;
  int outputs() const { return part.size; }
  int params() const { return part.size; }
  int actions() const { return 1; }
  int noises() const { return part.size; }  // Gumbel's

  void params_from(const float*, const vec* out, const vec* mask, vec* param, vec*) const {
    for (int i = 0; i < part.size; i++) param[i] = part.mask >= 0 && mask ? (mask[part.mask + i] > 0.5f ? out[i] : all(MASKED)) : out[i];
  }

  void draw(const vec* param, const vec* noise, vec* action) const {
    vec best = noise ? param[0] + noise[0] : param[0], at = vec{};
    for (int i = 1; i < part.size; i++) {
      vec score = noise ? param[i] + noise[i] : param[i];
      ivec better = score > best;
      best = better ? score : best, at = better ? all((float)i) : at;
    }
    action[0] = at;
  }

  float sent(float action, float, float) const { return action; }

  void measure(HeadScratch& s, bool with_old, Measures& m) const {
    const int n = part.size, at = part.param;
    const vec action = s.action[part.action];
    vec *logp = &s.logp[at], *p = &s.p[at], *old_logp = &s.old_logp[at], *old_p = &s.old_p[at];
    log_softmax(&s.param[at], n, logp, p);
    vec chosen = logp[0], h = vec{};
    for (int i = 0; i < n; i++) {
      chosen = action == (float)i ? logp[i] : chosen;
      h -= p[i] * logp[i];
    }
    m.log_prob += chosen, m.entropy += h;
    if (!with_old) return;
    log_softmax(&s.old[at], n, old_logp, old_p);
    for (int i = 0; i < n; i++) m.kl += old_p[i] * (old_logp[i] - logp[i]);
  }

  void gradient(HeadScratch& s, bool with_old, const Slopes& of, float*) const {
    const int n = part.size, at = part.param;
    const vec action = s.action[part.action], *logp = &s.logp[at], *p = &s.p[at], *old_p = &s.old_p[at];
    vec *out = &s.d_out[part.output], h = vec{};
    for (int i = 0; i < n; i++) h -= p[i] * logp[i];
    for (int i = 0; i < n; i++) {
      vec chosen = action == (float)i ? all(1.0f) : vec{};
      vec d = of.log_prob * (chosen - p[i]) - of.entropy * p[i] * (logp[i] + h);
      if (with_old) d += of.kl * (p[i] - old_p[i]);
      out[i] = legal(s, i, d);
    }
  }

  void fisher(const float*, HeadScratch& s, const vec* tangent, vec weight, float*) const {
    const int n = part.size, at = part.param;
    vec *p = &s.p[at], *out = &s.d_out[part.output], mean = vec{};
    log_softmax(&s.param[at], n, &s.logp[at], p);
    for (int i = 0; i < n; i++) mean += p[i] * legal(s, i, tangent[i]);
    for (int i = 0; i < n; i++) out[i] = weight * p[i] * (legal(s, i, tangent[i]) - mean);
  }

 private:
  // The logit of a forbidden choice gets no gradient.
  vec legal(const HeadScratch& s, int i, vec x) const {
    return part.mask >= 0 && !s.mask.empty() ? (s.mask[part.mask + i] > 0.5f ? x : vec{}) : x;
  }
};

// `size` independent bits. Parameters: their logits.
struct Bernoulli {
  const Part& part;
  int outputs() const { return part.size; }
  int params() const { return part.size; }
  int actions() const { return part.size; }
  int noises() const { return part.size; }  // logistic

  void params_from(const float*, const vec* out, const vec*, vec* param, vec*) const {
    for (int i = 0; i < part.size; i++) param[i] = out[i];
  }

  void draw(const vec* param, const vec* noise, vec* action) const {
    for (int i = 0; i < part.size; i++) action[i] = (noise ? param[i] + noise[i] : param[i]) > 0.0f ? all(1.0f) : vec{};
  }

  float sent(float action, float, float) const { return action; }

  void measure(HeadScratch& s, bool with_old, Measures& m) const {
    const int at = part.param;
    const vec *param = &s.param[at], *action = &s.action[part.action], *old = &s.old[at];
    vec *p = &s.p[at], *old_p = &s.old_p[at];
    for (int i = 0; i < part.size; i++) {
      vec one = -softplus(-param[i]), zero = -softplus(param[i]);
      p[i] = sigmoid(param[i]);
      m.log_prob += action[i] > 0.5f ? one : zero;
      vec q = sigmoid(-param[i]);
      m.entropy -= p[i] * one + q * zero;
      if (!with_old) continue;
      old_p[i] = sigmoid(old[i]);
      m.kl += old_p[i] * (-softplus(-old[i]) - one) + sigmoid(-old[i]) * (-softplus(old[i]) - zero);
    }
  }

  void gradient(HeadScratch& s, bool with_old, const Slopes& of, float*) const {
    const int at = part.param;
    const vec *param = &s.param[at], *action = &s.action[part.action], *p = &s.p[at], *old_p = &s.old_p[at];
    vec* out = &s.d_out[part.output];
    for (int i = 0; i < part.size; i++) {
      vec q = sigmoid(-param[i]);
      // σ(l)(1 − σ(l)), with both factors computed directly, so that neither is 1 − 1
      vec d = of.log_prob * (action[i] > 0.5f ? q : -p[i]) - of.entropy * param[i] * p[i] * q;
      if (with_old) d += of.kl * (p[i] - old_p[i]);
      out[i] = d;
    }
  }

  void fisher(const float*, HeadScratch& s, const vec* tangent, vec weight, float*) const {
    const int at = part.param;
    for (int i = 0; i < part.size; i++) {
      s.p[at + i] = sigmoid(s.param[at + i]);
      s.d_out[part.output + i] = weight * s.p[at + i] * sigmoid(-s.param[at + i]) * tangent[i];
    }
  }
};

}  // namespace surefoot
