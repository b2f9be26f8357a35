// The diagonal Gaussian, free or squashed into bounds by tanh.
#pragma once
#include "head_parts.hpp"

namespace surefoot {

constexpr float LOG_STD_LOW = -20.0f, LOG_STD_HIGH = 5.0f;
constexpr float STD_LOW = 2.061153622438558e-09f;  // e^−20
constexpr float LOG_2PI = 1.8378770664093453f, LOG_2 = 0.6931471805599453f;

// Parameters: means, then log stds. `slope` keeps d(param)/d(output) for the backward pass.
struct Gaussian {
  const Part& part;
  int outputs() const { return part.log_std < 0 ? 2 * part.size : part.size; }
  int params() const { return 2 * part.size; }
  int actions() const { return part.size; }
  int noises() const { return part.size; }  // standard normal

  void params_from(const float* theta, const vec* out, const vec*, vec* param, vec* slope) const {
    const int n = part.size;
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
        // The log is computed in scalars: softplus may be denormal, and vlog needs normal numbers.
        for (int l = 0; l < LANES; l++) param[n + i][l] = std::log(kept[l]);
        slope[n + i] = std < STD_LOW ? vec{} : sigmoid(out[n + i]) / kept;
      }
    }
  }

  void draw(const vec* param, const vec* noise, vec* action) const {
    const int n = part.size;
    for (int i = 0; i < n; i++) action[i] = noise ? param[i] + vexp(param[n + i]) * noise[i] : param[i];
  }

  float sent(float action, float low, float high) const { return action < low ? low : action > high ? high : action; }

  void measure(HeadScratch& s, bool with_old, Measures& m) const {
    const int n = part.size, at = part.param;
    const vec *param = &s.param[at], *action = &s.action[part.action], *old = &s.old[at];
    for (int i = 0; i < n; i++) {
      vec scaled = (action[i] - param[i]) * vexp(-param[n + i]);
      s.logp[at + i] = scaled;
      m.log_prob -= 0.5f * scaled * scaled + param[n + i] + 0.5f * LOG_2PI;
      m.entropy += param[n + i] + 0.5f * (1.0f + LOG_2PI);
      if (!with_old) continue;
      vec ratio = vexp(2.0f * (old[n + i] - param[n + i]));
      vec distance = (old[i] - param[i]) * vexp(-param[n + i]);
      m.kl += param[n + i] - old[n + i] + 0.5f * (ratio + distance * distance - 1.0f);
    }
  }

  void gradient(HeadScratch& s, bool with_old, const Slopes& of, float* shard) const {
    const int n = part.size, at = part.param;
    for (int i = 0; i < n; i++) {
      auto [mean, log_std] = slopes(s, with_old, of, i);
      send(s, i, mean * s.slope[at + i], log_std * s.slope[at + n + i], shard);
    }
  }

  void fisher(const float* direction, HeadScratch& s, const vec* tangent, vec weight, float* shard) const {
    const int n = part.size, at = part.param;
    vec* out = &s.d_out[part.output];
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

 protected:
  struct Pair {
    vec mean, log_std;
  };
  // Derivatives of the loss with respect to both parameters of a dimension.
  Pair slopes(const HeadScratch& s, bool with_old, const Slopes& of, int i) const {
    const int n = part.size, at = part.param;
    const vec *param = &s.param[at], *old = &s.old[at];
    vec inverse = vexp(-param[n + i]), scaled = s.logp[at + i];
    vec mean = of.log_prob * scaled * inverse;
    vec log_std = of.log_prob * (scaled * scaled - 1.0f) + of.entropy;
    if (with_old) {
      vec distance = (param[i] - old[i]) * inverse, ratio = vexp(2.0f * (old[n + i] - param[n + i]));
      mean += of.kl * distance * inverse;
      log_std += of.kl * (1.0f - ratio - distance * distance);
    }
    return {mean, log_std};
  }
  void send(HeadScratch& s, int i, vec mean, vec log_std, float* shard) const {
    s.d_out[part.output + i] = mean;
    if (part.log_std >= 0)
      shard[part.shard + i] += sum_of(log_std);
    else
      s.d_out[part.output + part.size + i] = log_std;
  }
};

// a = centre + half·tanh(u), where u is Gaussian. Actions are stored as u, so that nothing is lost at the bounds; densities
// and entropies are those of a. KL and Fisher matrix are the Gaussian's, because an invertible map of the action does not
// change them.
struct TanhGaussian : Gaussian {
  float sent(float action, float low, float high) const {
    const double centre = (double)low / 2 + (double)high / 2, half = (double)high / 2 - (double)low / 2;
    return Gaussian::sent((float)(centre + half * std::tanh((double)action)), low, high);
  }

  void measure(HeadScratch& s, bool with_old, Measures& m) const {
    Gaussian::measure(s, with_old, m);
    const int n = part.size;
    const vec *param = &s.param[part.param], *u = &s.action[part.action];
    m.log_prob -= part.log_scale, m.entropy += part.log_scale;
    for (int i = 0; i < n; i++) {
      const vec std = vexp(param[n + i]);
      m.log_prob -= log_slope(u[i]);
      for (int k = 0; k < NODES; k++)
        m.entropy += WEIGHT[k] * (log_slope(param[i] + NODE[k] * std) + log_slope(param[i] - NODE[k] * std));
    }
  }

  void gradient(HeadScratch& s, bool with_old, const Slopes& of, float* shard) const {
    const int n = part.size, at = part.param;
    const vec* param = &s.param[at];
    const bool with_entropy = any(of.entropy != 0.0f);
    for (int i = 0; i < n; i++) {
      auto [mean, log_std] = slopes(s, with_old, of, i);
      if (with_entropy) {
        // d/du log(1 − tanh² u) = −2 tanh u, at u = mean ± node·std
        const vec std = vexp(param[n + i]);
        vec of_mean{}, of_std{};
        for (int k = 0; k < NODES; k++) {
          vec above, below, unused;
          vtanh(param[i] + NODE[k] * std, above, unused), vtanh(param[i] - NODE[k] * std, below, unused);
          of_mean += WEIGHT[k] * (above + below), of_std += WEIGHT[k] * NODE[k] * (above - below);
        }
        mean -= 2.0f * of.entropy * of_mean, log_std -= 2.0f * of.entropy * of_std * std;
      }
      send(s, i, mean * s.slope[at + i], log_std * s.slope[at + n + i], shard);
    }
  }

 private:
  // log(1 − tanh² u), without cancellation at large |u|.
  static vec log_slope(vec u) {
    const vec size = vabs(u);
    return 2.0f * (LOG_2 - size - vlog1p(vexp(-2.0f * size)));
  }
  // E f(z) ≈ Σ weight·(f(node) + f(−node)) for a standard normal z: 32-point Gauss–Hermite quadrature.
  static constexpr int NODES = 16;
  static constexpr float NODE[NODES] = {0.275546419f, 0.827284904f, 1.3809802f,  1.93800491f, 2.49984042f, 3.06813517f,
                                        3.64478125f,  4.23202111f,  4.83260461f, 5.45003327f, 6.08896431f, 6.75593083f,
                                        7.46075575f,  8.21972877f,  9.06439921f, 10.0774227f};
  static constexpr float WEIGHT[NODES] = {0.21170557f,    0.156538994f,   0.0853448083f,  0.0341098477f,
                                          0.0099034617f,  0.00206205105f, 0.000302557026f, 3.05598031e-05f,
                                          2.0596221e-06f, 8.88129071e-08f, 2.31251841e-09f, 3.34750124e-11f,
                                          2.37806486e-13f, 6.75529022e-16f, 5.20844959e-19f, 4.12460749e-23f};
};

}  // namespace surefoot
