// The Beta distribution between bounds.
#pragma once
#include "head_parts.hpp"

namespace surefoot {

// log Γ and its first two derivatives.
struct Gammas {
  double log, first, second;
};

// For x ≥ 1, accurate to about 1e-12: Stirling's series at x + 8 or more, then back by Γ(x + 1) = x·Γ(x).
static inline Gammas gammas(double x) {
  double product = 1.0, first = 0.0, second = 0.0;
  for (; x < 8.0; x += 1.0) {
    const double inverse = 1.0 / x;
    product *= x, first -= inverse, second += inverse * inverse;
  }
  const double i = 1.0 / x, s = i * i, log_x = std::log(x);
  const double tail = i * (1.0 / 12 - s * (1.0 / 360 - s * (1.0 / 1260 - s * (1.0 / 1680 - s * (1.0 / 1188)))));
  const double of_tail = s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132)))));
  const double of_slope = i * s * (1.0 / 6 - s * (1.0 / 30 - s * (1.0 / 42 - s * (1.0 / 30 - s * (5.0 / 66)))));
  return {(x - 0.5) * log_x - x + 0.91893853320467274 + tail - std::log(product), first + log_x - 0.5 * i - of_tail,
          second + i + 0.5 * s + of_slope};
}

// x of Beta(α, β) on (0, 1), scaled to the bounds. Parameters: a, b with α = 1 + softplus(a), β = 1 + softplus(b), so that
// it has one peak. Computed in float64, because log Γ of a sharp peak would cancel all digits of a float32, and so lane by
// lane.
struct Beta {
  const Part& part;
  static constexpr int CANDIDATES = 8;  // for each of two gamma variates: a normal, and the log of a uniform
  static constexpr double EDGE = 1e-6;  // minimum distance of a draw from the ends of (0, 1)
  int outputs() const { return 2 * part.size; }
  int params() const { return 2 * part.size; }
  int actions() const { return part.size; }
  int noises() const { return 4 * CANDIDATES * part.size; }

  void params_from(const float*, const vec* out, const vec*, vec* param, vec*) const {
    for (int i = 0; i < 2 * part.size; i++) param[i] = out[i];
  }

  void draw(const vec* param, const vec* noise, vec* action) const {
    const int n = part.size;
    for (int i = 0; i < n; i++)
      for (int l = 0; l < LANES; l++) {
        const double a = above_one(param[i][l]), b = above_one(param[n + i][l]);
        double x;
        if (noise) {
          const double of_a = gamma(1.0 + a, noise, i, l), of_b = gamma(1.0 + b, noise, n + i, l);
          x = of_a / (of_a + of_b);
        } else {
          x = a + b > 0.0 ? a / (a + b) : 0.5;  // all values are equally likely
        }
        action[i][l] = (float)(x < EDGE ? EDGE : x > 1.0 - EDGE ? 1.0 - EDGE : x);
      }
  }

  float sent(float action, float low, float high) const {
    const double x = action;
    const float stretched = (float)(low * (1.0 - x) + high * x);
    return stretched < low ? low : stretched > high ? high : stretched;
  }

  // Keeps the derivatives of log π in logp and those of the KL in old_logp, both with respect to α and β.
  void measure(HeadScratch& s, bool with_old, Measures& m) const {
    const int n = part.size, at = part.param;
    m.log_prob -= part.log_scale, m.entropy += part.log_scale;
    for (int i = 0; i < n; i++) {
      const vec action = s.action[part.action + i];
      for (int l = 0; l < LANES; l++) {
        const Shape now(s.param[at + i][l], s.param[at + n + i][l]);
        const double x = action[l], log_x = std::log(x), log_rest = std::log1p(-x);
        m.log_prob[l] += (float)(now.a * log_x + now.b * log_rest - now.log_beta());
        m.entropy[l] += (float)(now.log_beta() - now.a * now.of_a.first - now.b * now.of_b.first +
                                (now.a + now.b) * now.both.first);
        s.logp[at + i][l] = (float)(log_x - now.slope_a()), s.logp[at + n + i][l] = (float)(log_rest - now.slope_b());
        if (!with_old) continue;
        const Shape old(s.old[at + i][l], s.old[at + n + i][l]);
        const double da = old.a - now.a, db = old.b - now.b;
        m.kl[l] += (float)(now.log_beta() - old.log_beta() + da * old.slope_a() + db * old.slope_b());
        s.old_logp[at + i][l] = (float)(now.slope_a() - old.slope_a());
        s.old_logp[at + n + i][l] = (float)(now.slope_b() - old.slope_b());
      }
    }
  }

  void gradient(HeadScratch& s, bool with_old, const Slopes& of, float*) const {
    const int n = part.size, at = part.param;
    const bool with_entropy = any(of.entropy != 0.0f);
    for (int i = 0; i < 2 * n; i++) {
      vec d = of.log_prob * s.logp[at + i];
      if (with_old) d += of.kl * s.old_logp[at + i];
      if (with_entropy) d += of.entropy * entropy_slope(s, i);
      s.d_out[part.output + i] = d * sigmoid(s.param[at + i]);
    }
  }

  // [ψ'(α) − ψ'(α + β), −ψ'(α + β); …] between the slopes of α and β.
  void fisher(const float*, HeadScratch& s, const vec* tangent, vec weight, float*) const {
    const int n = part.size, at = part.param;
    for (int i = 0; i < n; i++) {
      const vec slope_a = sigmoid(s.param[at + i]), slope_b = sigmoid(s.param[at + n + i]);
      const vec along_a = slope_a * tangent[i], along_b = slope_b * tangent[n + i];
      vec of_a, of_b, both;
      for (int l = 0; l < LANES; l++) {
        const Shape now(s.param[at + i][l], s.param[at + n + i][l]);
        of_a[l] = (float)now.of_a.second, of_b[l] = (float)now.of_b.second, both[l] = (float)now.both.second;
      }
      const vec shared = both * (along_a + along_b);
      s.d_out[part.output + i] = weight * slope_a * (of_a * along_a - shared);
      s.d_out[part.output + n + i] = weight * slope_b * (of_b * along_b - shared);
    }
  }

  // Entropy and std of x, from one pair of parameters.
  struct Spread {
    double entropy, std;
  };
  static Spread spread(float raw_a, float raw_b) {
    const Shape now(raw_a, raw_b);
    const double alpha = 1.0 + now.a, beta = 1.0 + now.b, total = alpha + beta;
    return {now.log_beta() - now.a * now.of_a.first - now.b * now.of_b.first + (now.a + now.b) * now.both.first,
            std::sqrt(alpha * beta / (total * total * (total + 1.0)))};
  }

 private:
  static double above_one(float raw) {  // softplus
    const double x = raw;
    return (x > 0.0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x)));
  }

  struct Shape {
    double a, b;  // α − 1, β − 1
    Gammas of_a, of_b, both;
    Shape(float raw_a, float raw_b)
        : a(above_one(raw_a)), b(above_one(raw_b)), of_a(gammas(1.0 + a)), of_b(gammas(1.0 + b)), both(gammas(2.0 + a + b)) {}
    double log_beta() const { return of_a.log + of_b.log - both.log; }
    // Derivatives of log B(α, β).
    double slope_a() const { return of_a.first - both.first; }
    double slope_b() const { return of_b.first - both.first; }
  };

  vec entropy_slope(const HeadScratch& s, int i) const {
    const int n = part.size, at = part.param, dimension = i % n;
    vec found;
    for (int l = 0; l < LANES; l++) {
      const Shape now(s.param[at + dimension][l], s.param[at + n + dimension][l]);
      const double own = i < n ? now.a * now.of_a.second : now.b * now.of_b.second;
      found[l] = (float)((now.a + now.b) * now.both.second - own);
    }
    return found;
  }

  // Marsaglia and Tsang's method: the first accepted candidate, or the last.
  double gamma(double shape, const vec* noise, int number, int lane) const {
    const vec *normal = noise + number * CANDIDATES, *log_uniform = normal + 2 * part.size * CANDIDATES;
    const double d = shape - 1.0 / 3.0, root = std::sqrt(9.0 * d);
    double v = 0.0;
    for (int i = 0; i < CANDIDATES; i++) {
      const double z = normal[i][lane], base = 1.0 + z / root, kept = base < 1e-6 ? 1e-6 : base;
      v = kept * kept * kept;
      if (base > 0.0 && log_uniform[i][lane] < 0.5 * z * z + d * (1.0 - v + std::log(v))) break;
    }
    return d * v;
  }
};

}  // namespace surefoot
