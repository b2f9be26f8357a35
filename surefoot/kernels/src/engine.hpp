// An actor-critic made of linear layers: acting, values, losses with their gradients, epochs of minibatches, Fisher
// products. The batch is cut into tiles of a few samples and those into shards, each with a gradient of its own; the
// shards are added up in order. So no result depends on the number of threads.
#pragma once
#include <cmath>
#include <memory>

#include "heads.hpp"
#include "net.hpp"
#include "pool.hpp"

namespace surefoot {

enum Surrogate { NONE = 0, LOG_PROB = 1, RATIO = 2, CLIP = 3 };

// −E[surrogate − kl_coef·KL] + value_coef·E[value loss] − entropy_coef·E[entropy]
struct LossSpec {
  int64_t surrogate, huber, with_kl, with_value;
  double clip_ratio, kl_coef, value_coef, value_clip /* < 0: none */, entropy_coef;
};

struct OptimizerSpec {
  int64_t adam, slices, begin[2], end[2];
  double rate[2], max_grad_norm /* < 0: none */;
};

// B samples; weight may be null. Rows of x: what the network sees, then the action mask. For a memory (`Recurrent`) they
// are B / S steps of S sequences, time-major.
struct Batch {
  int64_t size;
  const float *x, *action, *log_prob, *params, *advantage, *target, *value, *weight;
  int64_t sequences;
  const uint8_t* start;  // [B / S, S]: memory begins anew before this step
  const float* memory;   // [S, M] before the first step
};

struct Sums {
  double surrogate, value_loss, entropy, kl, approx_kl, clipped, weight, ratio_error;
};
constexpr int NUM_SUMS = 8;

struct Workspace {
  std::vector<vec> x, dx, d_shared, d_value;
  Scratch trunk, actor, critic;
  HeadScratch head;
};

class Engine {
 public:
  int inputs = 0, width = 0;  // of a row of x: inputs, then the mask
  bool has_trunk = false, has_critic = false;
  Chain memory, trunk, actor, critic;  // memory: the two layers of a `Recurrent`, or none
  Head head;
  int64_t size = 0, actor_size = 0, shard_size = 0, critic_begin = 0 /* in a shard */;
  std::unique_ptr<Pool> pool;
  std::vector<std::unique_ptr<Workspace>> spaces;
  std::vector<float> shard_storage;
  float* shards = nullptr;
  // Where a loss's gradient with respect to what the MLPs see goes, [samples, inputs]; null: nowhere. Of actor and critic
  // that are learned apart: one each.
  float* d_inputs[2] = {};

  virtual ~Engine() {}
  // Before gradients of `units` samples (or sequences) of a batch at a time; `all`: also of what is not trained.
  virtual void prepare(const float* /* theta */, const Batch&, int64_t /* units */, bool /* all */) {}
  // This rank's part of a minibatch's gradient; every rank gets its sums and, where it is asked for, its norm's square.
  virtual Sums learn(int rank, const float* theta, const LossSpec& spec, const Batch& batch, const int64_t* index,
                     int64_t units, bool normalize, float* g, double* square) {
    const Sums found = minibatch(rank, theta, spec, batch, index, units, normalize);
    reduce(rank, g, units, square);
    return found;
  }

  static constexpr int MOST_SHARDS = 8;
  // Actor and critic that share nothing are learned apart: each with its own weights and gradient at hand, each perhaps
  // by a thread of its own, with nothing to add up in the end.
  bool apart() const { return has_critic && !has_trunk; }
  // Of a batch: few enough that adding them up costs little, enough to keep that many threads busy.
  int num_shards(int64_t samples) const {
    const int64_t each = apart() ? samples / 4 : samples;
    const int found = each < 32 ? 1 : each < 512 ? 2 : each < 2048 ? 4 : MOST_SHARDS;
    return apart() && samples < 512 ? 1 : found;
  }
  int num_tasks(int64_t samples) const { return num_shards(samples) * (apart() ? 2 : 1); }
  static int64_t num_tiles(int64_t samples) { return (samples + LANES - 1) / LANES; }

  void finish(int threads) {
    head.outputs = std::max(head.outputs, actor.out());
    auto lay = [&](Chain& chain) {
      for (Layer& layer : chain.layers) {
        layer.stride = (layer.in + LANES - 1) / LANES * LANES;
        layer.shard = shard_size;
        shard_size += (int64_t)(layer.stride + LANES) * layer.out;
      }
    };
    lay(memory);
    if (has_trunk) lay(trunk);
    lay(actor);
    for (Part& part : head.parts) {
      part.shard = shard_size;
      shard_size += (part.size + LANES - 1) / LANES * LANES;
    }
    critic_begin = shard_size;
    if (has_critic) lay(critic);
    shard_storage.resize((size_t)shard_size * MOST_SHARDS + 16);
    shards = (float*)(((uintptr_t)shard_storage.data() + 63) & ~(uintptr_t)63);
    pool.reset(new Pool(threads));
    for (int rank = 0; rank < threads; rank++) {
      spaces.emplace_back(new Workspace);
      Workspace& space = *spaces.back();
      space.x.resize(width + 1), space.dx.resize(width + 1);
      if (has_trunk) space.trunk.prepare(trunk), space.d_shared.resize(trunk.out());
      space.actor.prepare(actor), space.head.prepare(head);
      if (has_critic) space.critic.prepare(critic), space.d_value.resize(1);
    }
  }

  // Rows, as lanes; beyond `count` the last one again.
  static void load(const float* rows, int64_t stride, int columns, const int64_t* index, int count, vec* to) {
    for (int l = 0; l < LANES; l++) {
      const float* row = rows + index[l < count ? l : count - 1] * stride;
      for (int i = 0; i < columns; i++) ((float*)(to + i))[l] = row[i];
    }
  }
  static vec load(const float* column, const int64_t* index, int count) {
    vec x;
    for (int l = 0; l < LANES; l++) x[l] = column[index[l < count ? l : count - 1]];
    return x;
  }
  static void store(const vec* from, int columns, float* rows, int count) {
    for (int l = 0; l < count; l++)
      for (int i = 0; i < columns; i++) rows[(int64_t)l * columns + i] = from[i][l];
  }

  const vec* features(const float* theta, Workspace& space) const {
    return has_trunk ? forward(trunk, theta, space.x.data(), space.trunk) : space.x.data();
  }
  void distribution(const float* theta, const vec* shared, Workspace& space) const {
    const vec* out = forward(actor, theta, shared, space.actor);
    for (int i = 0; i < head.masks; i++) space.head.mask[i] = space.x[inputs + i];
    for (const Part& part : head.parts)
      params_from(part, theta, out, head.masks ? space.head.mask.data() : nullptr, space.head.param.data(),
                  space.head.slope.data());
  }

  // Actions and what belongs to them, for n observations. noise null: the mode. Any output may be null.
  void act_tile(const float* theta, const float* x, const float* noise, int count, float* params, float* action,
                float* log_prob, Workspace& space) const {
    int64_t index[LANES];
    for (int l = 0; l < LANES; l++) index[l] = l;
    load(x, width, width, index, count, space.x.data());
    distribution(theta, features(theta, space), space);
    draw_tile(noise, count, params, action, log_prob, space);
  }

  // As `act_tile`, of fewer samples than half a tile, through weights that were turned for them.
  void act_few(const float* theta, Turned& turned_trunk, Turned& turned_actor, const float* x, const float* noise,
               int count, float* params, float* action, float* log_prob, Workspace& space) const {
    HeadScratch& h = space.head;
    for (int l = 0; l < count; l++) {
      const float* seen = x + (int64_t)l * width;
      for (int i = 0; i < head.masks; i++) h.mask[i][l] = seen[inputs + i];
      if (has_trunk) seen = turned_trunk.run(trunk, seen);
      const float* out = turned_actor.run(actor, seen);
      for (int o = 0; o < head.outputs; o++) h.d_out[o][l] = out[o];
    }
    for (int o = 0; o < head.outputs; o++)
      for (int l = count; l < LANES; l++) h.d_out[o][l] = h.d_out[o][count - 1];
    for (const Part& part : head.parts)
      params_from(part, theta, h.d_out.data(), head.masks ? h.mask.data() : nullptr, h.param.data(), h.slope.data());
    draw_tile(noise, count, params, action, log_prob, space);
  }

  void draw_tile(const float* noise, int count, float* params, float* action, float* log_prob, Workspace& space) const {
    int64_t index[LANES];
    for (int l = 0; l < LANES; l++) index[l] = l;
    HeadScratch& h = space.head;
    if (noise) load(noise, head.noises, head.noises, index, count, h.noise.data());
    for (const Part& part : head.parts) draw(part, h.param.data(), noise ? h.noise.data() : nullptr, h.action.data());
    vec chosen{}, entropy{}, kl{};
    if (log_prob) {
      for (const Part& part : head.parts) measure(part, h, false, chosen, entropy, kl);
      for (int l = 0; l < count; l++) log_prob[l] = chosen[l];
    }
    if (params) store(h.param.data(), head.params, params, count);
    if (action) store(h.action.data(), head.actions, action, count);
  }

  void over_tiles(int64_t samples, const std::function<void(int64_t, int, Workspace&)>& body) {
    const int64_t tiles = num_tiles(samples);
    auto part = [&](int rank, int size) {
      for (int64_t tile = tiles * rank / size; tile < tiles * (rank + 1) / size; tile++)
        body(tile * LANES, (int)std::min<int64_t>(LANES, samples - tile * LANES), *spaces[rank]);
    };
    if (samples < 64) part(0, 1);  // waking somebody takes longer
    else pool->run([&](int rank) { part(rank, pool->size()); });
  }

  void values(const float* theta, const float* x, int64_t samples, float* out) {
    over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      int64_t index[LANES];
      for (int l = 0; l < LANES; l++) index[l] = at + l;
      load(x, width, inputs, index, count, space.x.data());
      const vec* v = forward(critic, theta, features(theta, space), space.critic);
      for (int l = 0; l < count; l++) out[at + l] = v[0][l];
    });
  }

  // Outputs of actor and critic side by side, `[samples, outputs + 1]`, before any distribution is made of them.
  void outputs(const float* theta, const float* x, int64_t samples, float* out) {
    const int columns = head.outputs + (has_critic ? 1 : 0);
    over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      int64_t index[LANES];
      for (int l = 0; l < LANES; l++) index[l] = at + l;
      load(x, width, inputs, index, count, space.x.data());
      const vec* shared = features(theta, space);
      const vec* a = forward(actor, theta, shared, space.actor);
      const vec* v = has_critic ? forward(critic, theta, shared, space.critic) : nullptr;
      for (int l = 0; l < count; l++) {
        for (int i = 0; i < head.outputs; i++) out[(at + l) * columns + i] = a[i][l];
        if (v) out[(at + l) * columns + head.outputs] = v[0][l];
      }
    });
  }

  // The way back from d(outputs), `[samples, outputs + 1]`, to the gradient of all weights (log_std apart) and, where
  // dx is not null, of x.
  void outputs_gradient(const float* theta, const float* x, const float* d, int64_t samples, float* gradient,
                        float* dx) {
    const int columns = head.outputs + (has_critic ? 1 : 0);
    sharded(samples, gradient, [&](int64_t at, int count, Workspace& space, float* g) {
      int64_t index[LANES];
      for (int l = 0; l < LANES; l++) index[l] = at + l;
      load(x, width, inputs, index, count, space.x.data());
      const vec* shared = features(theta, space);
      forward(actor, theta, shared, space.actor);
      if (has_critic) forward(critic, theta, shared, space.critic);
      for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < head.outputs; i++) space.head.d_out[i][l] = l < count ? d[(at + l) * columns + i] : 0.0f;
        if (has_critic) space.d_value[0][l] = l < count ? d[(at + l) * columns + head.outputs] : 0.0f;
      }
      back(theta, shared, space, g, true, has_critic, dx != nullptr);
      if (dx)
        for (int l = 0; l < count; l++)
          for (int i = 0; i < inputs; i++) dx[(at + l) * inputs + i] = space.dx[i][l];
    });
  }

  // Mean KL(old‖new) and surrogate terms without gradients; kl, where not null, gets each sample's.
  Sums evaluate(const float* theta, const LossSpec& spec, const Batch& batch, float* kl) {
    const int64_t tiles = num_tiles(batch.size);
    std::vector<Sums> sums(tiles);
    over_tiles(batch.size, [&](int64_t at, int count, Workspace& space) {
      int64_t index[LANES];
      for (int l = 0; l < LANES; l++) index[l] = at + l;
      Sums& s = sums[at / LANES];
      s = Sums{};
      loss_tile(BOTH, theta, spec, batch, index, count, 1.0f, 0.0f, 1.0f, space, nullptr, s, kl ? kl + at : nullptr);
    });
    Sums total{};
    for (const Sums& s : sums) add(total, s);
    for (int64_t i = 0; i < batch.size; i++) total.weight += batch.weight ? batch.weight[i] : 1.0;
    return total;
  }

  // The gradient of the loss over the samples (or sequences) at `index` (null: all of them), and its terms.
  Sums gradient(const float* theta, const LossSpec& spec, const Batch& batch, const int64_t* index, int64_t samples,
                bool normalize, float* g) {
    Sums total{};
    prepare(theta, batch, samples, true);
    pool->run([&](int rank) {
      const Sums found = learn(rank, theta, spec, batch, index, samples, normalize, g, nullptr);
      if (rank == 0) total = found;
    });
    return total;
  }

  // One part of `epochs`: minibatch gradients with optimizer steps. Metrics are summed into `history`.
  void epochs(float* theta, float* g, float* first, float* second, int64_t* steps, const LossSpec& spec,
              const OptimizerSpec& optimizer, const Batch& batch, const int64_t* order, int64_t num_epochs,
              int64_t minibatches, bool normalize, double* history, double* first_ratio_error) {
    const int64_t samples = (batch.start ? batch.sequences : batch.size) / minibatches;
    prepare(theta, batch, samples, false);
    pool->run([&](int rank) {
      int64_t step = *steps;
      for (int64_t at = 0; at < num_epochs * minibatches; at++) {
        const int64_t* index = minibatches == 1 ? nullptr : order + at * samples;
        double square = 0.0;
        const Sums found = learn(rank, theta, spec, batch, index, samples, normalize, g, &square);
        step++;
        const double norm = std::sqrt(square);
        descend(rank, theta, g, first, second, step, optimizer, norm);
        if (rank == 0) {
          double weight = found.weight > 1.0 ? found.weight : 1.0;
          const double terms[7] = {found.surrogate / weight, found.value_loss / weight, found.entropy / weight,
                                   found.approx_kl / weight, found.clipped / weight,    found.kl / weight,
                                   norm};
          for (int i = 0; i < 7; i++) history[i] += terms[i];
          if (at == 0 && first_ratio_error) *first_ratio_error = found.ratio_error;
        }
        pool->barrier().wait();
      }
      if (rank == 0) *steps = step;
    });
  }

  // (F + 0)·direction, F being the mean Fisher matrix of the batch (weights as in a loss). Where x itself depends on the
  // parameters: `along`, [B, inputs], is its tangent, and `after` takes the way back on from `d_inputs`.
  void fisher_product(const float* theta, const float* direction, const Batch& batch, float* product,
                      const float* along = nullptr, const std::function<void(int)>* after = nullptr) {
    double total = 0.0;
    for (int64_t i = 0; i < batch.size; i++) total += batch.weight ? batch.weight[i] : 1.0;
    const float scale = (float)(1.0 / (total > 1.0 ? total : 1.0));
    sharded(batch.size, product, [&](int64_t at, int count, Workspace& space, float* g) {
      int64_t index[LANES];
      for (int l = 0; l < LANES; l++) index[l] = at + l;
      load(batch.x, width, width, index, count, space.x.data());
      const vec* shared = features(theta, space);
      const vec* tangent = nullptr;
      if (along) {
        load(along, inputs, inputs, index, count, space.dx.data());
        tangent = space.dx.data();
      }
      if (has_trunk) tangent = forward_tangent(trunk, theta, direction, space.x.data(), tangent, space.trunk);
      distribution(theta, shared, space);
      HeadScratch& h = space.head;
      for (const Part& part : head.parts)
        if (part.kind == CATEGORICAL)
          log_softmax(&h.param[part.param], part.size, &h.logp[part.param], &h.p[part.param]);
        else if (part.kind == BERNOULLI)
          for (int i = 0; i < part.size; i++) h.p[part.param + i] = sigmoid(h.param[part.param + i]);
      tangent = forward_tangent(actor, theta, direction, shared, tangent, space.actor);
      vec weight = all(scale);
      if (batch.weight) weight *= load(batch.weight, index, count);
      for (int l = count; l < LANES; l++) weight[l] = 0.0f;
      for (const Part& part : head.parts) fisher(part, direction, h, tangent, weight, g);
      back(theta, shared, space, g, true, false, along != nullptr);
      if (along) store_inputs(space, d_inputs[0], index, count);
    }, after);
  }

 protected:
  static void add(Sums& total, const Sums& s) {
    double* a = (double*)&total;
    const double* b = (const double*)&s;
    for (int i = 0; i < NUM_SUMS - 1; i++) a[i] += b[i];
    if (!(b[NUM_SUMS - 1] <= a[NUM_SUMS - 1])) a[NUM_SUMS - 1] = b[NUM_SUMS - 1];  // a maximum that keeps a NaN
  }

  void back(const float* theta, const vec* shared, Workspace& space, float* g, bool with_actor, bool with_critic,
            bool with_inputs = false) {
    vec* d_inputs = with_inputs ? space.dx.data() : nullptr;
    vec* d_shared = has_trunk ? space.d_shared.data() : d_inputs;
    if (with_inputs) std::fill(space.dx.begin(), space.dx.end(), vec{});
    if (has_trunk) std::fill(space.d_shared.begin(), space.d_shared.end(), vec{});
    if (with_actor) backward(actor, theta, shared, space.head.d_out.data(), space.actor, g, d_shared);
    if (with_critic) backward(critic, theta, shared, space.d_value.data(), space.critic, g, d_shared);
    if (has_trunk) backward(trunk, theta, space.x.data(), d_shared, space.trunk, g, d_inputs);
  }

  void store_inputs(const Workspace& space, float* to, const int64_t* index, int count) const {
    for (int l = 0; l < count; l++)
      for (int i = 0; i < inputs; i++) to[index[l] * inputs + i] = ((const float*)&space.dx[i])[l];
  }

  enum Which { ACTOR = 1, CRITIC = 2, BOTH = 3 };

  // Forward, loss, and (g not null) backward, of one tile. Advantages are seen as (A − shift)·stretch.
  void loss_tile(int which, const float* theta, const LossSpec& spec, const Batch& batch, const int64_t* index, int count,
                 float scale, float shift, float stretch, Workspace& space, float* g, Sums& sums, float* kl_out) {
    load(batch.x, width, width, index, count, space.x.data());
    vec weight = batch.weight ? load(batch.weight, index, count) : all(1.0f);
    for (int l = count; l < LANES; l++) weight[l] = 0.0f;
    const vec share = weight * scale, *shared = features(theta, space);
    const bool with_actor = (which & ACTOR) && wants_actor(spec);
    HeadScratch& h = space.head;
    if (with_actor) {
      distribution(theta, shared, space);
      load(batch.action, head.actions, head.actions, index, count, h.action.data());
      if (spec.with_kl) load(batch.params, head.params, head.params, index, count, h.old.data());
      vec log_prob{}, entropy{}, kl{};
      for (const Part& part : head.parts) measure(part, h, spec.with_kl, log_prob, entropy, kl);
      if (kl_out)
        for (int l = 0; l < count; l++) kl_out[l] = kl[l];
      const vec advantage = batch.advantage ? (load(batch.advantage, index, count) - shift) * stretch : vec{};
      const vec change = log_prob - load(batch.log_prob, index, count), ratio = vexp(change);
      vec surrogate, of_log_prob, cut{};
      if (spec.surrogate == LOG_PROB) {
        surrogate = log_prob * advantage, of_log_prob = -advantage;
      } else {
        surrogate = ratio * advantage, of_log_prob = -surrogate;
        if (spec.surrogate == CLIP) {
          const vec kept = clamp(ratio, (float)(1.0 - spec.clip_ratio), (float)(1.0 + spec.clip_ratio));
          const vec other = kept * advantage;
          of_log_prob = surrogate > other ? vec{} : of_log_prob;  // the cut one is smaller: it sends nothing
          surrogate = vmin(surrogate, other);
          cut = ratio != kept ? all(1.0f) : vec{};
        }
      }
      sums.surrogate += sum_of_double(weight * surrogate);
      sums.entropy += sum_of_double(weight * entropy);
      sums.kl += sum_of_double(weight * kl);
      sums.approx_kl += sum_of_double(weight * (ratio - 1.0f - change));
      sums.clipped += sum_of_double(weight * cut);
      for (int l = 0; l < count; l++) {
        double off = std::fabs((double)ratio[l] - 1.0) * weight[l];
        if (!(off <= sums.ratio_error)) sums.ratio_error = off;
      }
      if (g)
        for (const Part& part : head.parts)
          surefoot::gradient(part, h, spec.with_kl, share * of_log_prob, share * (float)-spec.entropy_coef,
                             share * (float)spec.kl_coef, g);
    }
    const bool with_value = (which & CRITIC) && wants_critic(spec);
    if (with_value) {
      const vec v = forward(critic, theta, shared, space.critic)[0], target = load(batch.target, index, count);
      vec slope, loss = distance(v - target, spec.huber, slope);
      if (spec.value_clip >= 0.0) {
        const vec old = load(batch.value, index, count), moved = v - old;
        const vec near = old + clamp(moved, (float)-spec.value_clip, (float)spec.value_clip);
        vec near_slope, near_loss = distance(near - target, spec.huber, near_slope);
        const ivec inside = vabs(moved) <= (float)spec.value_clip;
        const ivec larger = near_loss > loss;
        slope = larger ? (inside ? near_slope : vec{}) : slope;
        loss = larger ? near_loss : loss;
      }
      sums.value_loss += sum_of_double(weight * loss);
      if (g) space.d_value[0] = share * (float)spec.value_coef * slope;
    }
    if (g) back(theta, shared, space, g, with_actor, with_value, d_inputs[0] != nullptr);
    if (g && d_inputs[0]) store_inputs(space, d_inputs[which == CRITIC], index, count);
  }

  static bool wants_actor(const LossSpec& spec) { return spec.surrogate != NONE || spec.with_kl; }
  bool wants_critic(const LossSpec& spec) const { return has_critic && spec.with_value; }
  bool in_two(const LossSpec& spec) const { return apart() && wants_actor(spec) && wants_critic(spec); }

  static vec distance(vec error, bool huber, vec& slope) {
    if (!huber) {
      slope = 2.0f * error;
      return error * error;
    }
    const vec size = vabs(error);
    const ivec near = size < 1.0f;
    slope = near ? error : (error > 0.0f ? all(1.0f) : all(-1.0f));
    return near ? 0.5f * error * error : size - 0.5f;
  }

  // Whether a rank is the one for piece `number` of the actor's (or all) or of the critic's. Half of the ranks are for
  // either, so that weights, gradients and moments of one network stay with the same core.
  bool mine(int rank, bool of_critic, int number) const {
    const int size = pool->size(), half = size / 2;
    if (!apart()) return number % size == rank;
    if (size % 2) return (2 * number + of_critic) % size == rank;
    return rank == (of_critic ? half : 0) + number % half;
  }

  // This rank's shards of a minibatch's gradient. Ends with a barrier; every rank gets the sums of all.
  Sums minibatch(int rank, const float* theta, const LossSpec& spec, const Batch& batch, const int64_t* index,
                 int64_t samples, bool normalize) {
    const int64_t tiles = num_tiles(samples);
    const int count = num_shards(samples);
    // Every rank reads all weights and advantages itself: cheaper than another barrier.
    double weights = 0.0, sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < samples; i++) {
      const int64_t at = index ? index[i] : i;
      const double w = batch.weight ? batch.weight[at] : 1.0;
      weights += w;
      if (normalize) sum += w * batch.advantage[at];
    }
    const double counted = weights;
    weights = weights > 1.0 ? weights : 1.0;  // all invalid: the loss is 0, not 0/0
    float shift = 0.0f, stretch = 1.0f;
    if (normalize && weights > 1.0) {  // of a single sample nothing would be left
      const double mean = sum / weights;
      for (int64_t i = 0; i < samples; i++) {
        const int64_t at = index ? index[i] : i;
        const double d = batch.advantage[at] - mean;
        squares += (batch.weight ? batch.weight[at] : 1.0) * d * d;
      }
      shift = (float)mean, stretch = (float)(1.0 / (std::sqrt(squares / weights) + 1e-8));
    }
    const bool two = in_two(spec);
    for (int shard = 0; shard < count; shard++)
      for (int critic = 0; critic <= (two ? 1 : 0); critic++) {
        if (!mine(rank, critic, shard)) continue;
        float* g = shards + shard * shard_size;
        const int64_t begin = critic ? critic_begin : 0, end = two && !critic ? critic_begin : shard_size;
        std::memset(g + begin, 0, sizeof(float) * (end - begin));
        Sums sums{};
        for (int64_t tile = tiles * shard / count; tile < tiles * (shard + 1) / count; tile++) {
          int64_t at[LANES];
          const int here = (int)std::min<int64_t>(LANES, samples - tile * LANES);
          for (int l = 0; l < LANES; l++) {
            const int64_t i = tile * LANES + (l < here ? l : here - 1);
            at[l] = index ? index[i] : i;
          }
          loss_tile(two ? critic ? CRITIC : ACTOR : BOTH, theta, spec, batch, at, here, (float)(1.0 / weights), shift,
                    stretch, *spaces[rank], g, sums, nullptr);
        }
        task_sums_[2 * shard + critic] = sums;
      }
    pool->barrier().wait();
    Sums total{};
    for (int task = 0; task < 2 * count; task++)
      if (two || task % 2 == 0) add(total, task_sums_[task]);
    total.weight = counted;
    return total;
  }

  // Adds the shards into g, each rank its own layers; the square of its norm, added up in the order of the layers.
  void reduce(int rank, float* g, int64_t samples, double* square) {
    const int count = num_shards(samples);
    for (int piece = 0; piece < (int)pieces_.size(); piece++) {
      const Piece& p = pieces_[piece];
      if (!mine(rank, p.critic, piece)) continue;
      double sum = 0.0;
      for (int row = 0; row < p.rows; row++)
        sum += p.columns == 1 && p.stride == LANES
                   ? add_lanes(shards + p.from + (int64_t)row * p.stride, count, g + p.to + row)
                   : add_shards(shards + p.from + (int64_t)row * p.stride, count, p.columns, g + p.to + (int64_t)row * p.columns);
      piece_squares_[piece] = p.trained ? sum : 0.0;
    }
    pool->barrier().wait();
    if (!square) return;
    *square = 0.0;
    for (double s : piece_squares_) *square += s;
  }

  // to = Σ of a row over the shards; returns the square of its norm.
  double add_shards(const float* from, int count, int columns, float* to) const {
    vec squares{};
    int i = 0;
    for (; i + LANES <= columns; i += LANES) {
      vec x = *(const vec*)(from + i);
      for (int shard = 1; shard < count; shard++) x += *(const vec*)(from + shard * shard_size + i);
      std::memcpy(to + i, &x, sizeof x);
      squares += x * x;
    }
    float rest = 0.0f;
    for (; i < columns; i++) {
      float x = from[i];
      for (int shard = 1; shard < count; shard++) x += from[shard * shard_size + i];
      to[i] = x;
      rest += x * x;
    }
    return (double)sum_of(squares) + rest;
  }

  // A bias: one number for each unit, kept lane by lane. (A weight of a single input is laid out alike, with zeros.)
  double add_lanes(const float* from, int count, float* to) const {
    vec x = *(const vec*)from;
    for (int shard = 1; shard < count; shard++) x += *(const vec*)(from + shard * shard_size);
    *to = sum_of(x);
    return (double)*to * *to;
  }

  // The parameters that a rank moves: a share of one network's, as in `mine`, or of all.
  std::pair<int64_t, int64_t> range(int rank) const {
    const int ranks = pool->size(), half = ranks / 2;
    if (!apart() || ranks % 2) return {size * rank / ranks, size * (rank + 1) / ranks};
    const bool of_critic = rank >= half;
    const int64_t first = of_critic ? actor_size : 0, length = of_critic ? size - actor_size : actor_size;
    const int at = of_critic ? rank - half : rank;
    return {first + length * at / half, first + length * (at + 1) / half};
  }

  void descend(int rank, float* theta, const float* g, float* first, float* second, int64_t step,
               const OptimizerSpec& spec, double norm) {
    float clip = 1.0f;
    if (spec.max_grad_norm >= 0.0) {
      const double room = spec.max_grad_norm / (norm + 1e-6);
      clip = room < 1.0 ? (float)room : room >= 1.0 ? 1.0f : (float)room;  // a NaN stays one
    }
    for (int slice = 0; slice < spec.slices; slice++) {
      const auto [low, high] = range(rank);
      const int64_t begin = std::max(spec.begin[slice], low), end = std::min(spec.end[slice], high);
      if (spec.adam) {
        const float rate = (float)(spec.rate[slice] / (1.0 - std::pow(0.9, (double)step)));
        const float root = (float)(1.0 / std::sqrt(1.0 - std::pow(0.999, (double)step)));
        for (int64_t i = begin; i < end; i++) {
          const float d = g[i] * clip;
          first[i] += 0.1f * (d - first[i]);
          second[i] = second[i] * 0.999f + 0.001f * d * d;
          theta[i] -= rate * first[i] / (__builtin_sqrtf(second[i]) * root + 1e-5f);
        }
      } else {
        const float rate = (float)spec.rate[slice];
        for (int64_t i = begin; i < end; i++) {
          const float d = g[i] * clip;
          second[i] = second[i] * 0.99f + 0.01f * d * d;
          theta[i] -= rate * d / (__builtin_sqrtf(second[i]) + 1e-5f);
        }
      }
    }
  }

  // A pass over all tiles in shards whose sum, once `after` has added to them, is the result; no optimizer.
  template <typename Body>
  void sharded(int64_t samples, float* result, const Body& body, const std::function<void(int)>* after = nullptr) {
    const int64_t tiles = num_tiles(samples);
    const int count = num_shards(samples);
    pool->run([&](int rank) {
      for (int shard = rank; shard < count; shard += pool->size()) {
        float* g = shards + shard * shard_size;
        std::memset(g, 0, sizeof(float) * shard_size);
        for (int64_t tile = tiles * shard / count; tile < tiles * (shard + 1) / count; tile++)
          body(tile * LANES, (int)std::min<int64_t>(LANES, samples - tile * LANES), *spaces[rank], g);
      }
      pool->barrier().wait();
      if (after) {
        (*after)(rank);
        pool->barrier().wait();
      }
      reduce(rank, result, samples, nullptr);
    });
  }

  // Where each layer's gradient stands in a shard and in the parameter vector.
  struct Piece {
    int64_t from, to;
    int rows, columns, stride;
    bool trained, critic;
  };
  std::vector<Piece> pieces_;
  std::vector<double> piece_squares_;
  Sums task_sums_[2 * MOST_SHARDS];

 public:
  int64_t first_trained = 0;
  void cut() {
    pieces_.clear();
    auto lay = [&](const Chain& chain, bool of_critic) {
      for (const Layer& layer : chain.layers) {
        const int most = 16;  // rows of a piece: enough of them for all threads
        for (int row = 0; row < layer.out; row += most)
          pieces_.push_back({layer.shard + (int64_t)row * layer.stride, layer.weight + (int64_t)row * layer.in,
                             std::min(most, layer.out - row), layer.in, layer.stride, layer.weight >= first_trained,
                             of_critic});
        pieces_.push_back({layer.shard + (int64_t)layer.out * layer.stride, layer.bias, layer.out, 1, LANES,
                           layer.bias >= first_trained, of_critic});
      }
    };
    lay(memory, false);
    if (has_trunk) lay(trunk, false);
    lay(actor, false);
    for (const Part& part : head.parts)
      if (part.log_std >= 0)
        pieces_.push_back({part.shard, part.log_std, 1, part.size, 0, part.log_std >= first_trained, false});
    if (has_critic) lay(critic, true);
    piece_squares_.assign(pieces_.size(), 0.0);
  }
};

}  // namespace surefoot
