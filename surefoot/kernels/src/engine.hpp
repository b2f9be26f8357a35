// An actor-critic made of linear layers: acting, values, losses with their gradients, epochs of minibatches, Fisher
// products. The batch is cut into tiles of as many samples as a register has lanes and those into shards, each with a
// gradient of its own; the shards are added up in order. So no result depends on the number of threads. Within a shard a
// group of tiles goes through a layer together, so that a weight that was fetched serves them all.
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

// Of one group, [tile][…]; the head's is of one tile.
struct Workspace {
  std::vector<vec> x, dx, d_shared, d_actor, d_value;
  std::vector<int64_t> index;
  std::vector<Sums> sums;
  Scratch trunk, actor, critic;
  HeadScratch head;
};

class Engine {
 public:
  int inputs = 0, width = 0;  // of a row of x: inputs, then the mask
  bool has_trunk = false, has_critic = false;
  Chain memory, trunk, actor, critic;  // memory: the two layers of a `Recurrent`, or none
  Head head;
  int64_t size = 0, actor_size = 0, shard_size = 0, memory_end = 0 /* in a shard */, parts_begin = 0, critic_begin = 0;
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
  // Tiles that go through a layer together. The weights' gradient, which no cache near the core holds when layers are
  // wide, is read and written once in a group: 64 samples at a time were 10 to 13 % slower at 1024 units, 256 were 3 %,
  // 1024 no faster. Narrow layers do not care.
  static constexpr int GROUP = 512 / LANES;
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
  static int in_tile(int count, int tile) { return std::min(LANES, count - tile * LANES); }

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
    memory_end = shard_size;
    if (has_trunk) lay(trunk);
    lay(actor);
    parts_begin = shard_size;
    for (Part& part : head.parts) {
      part.shard = shard_size;
      shard_size += (part.size + LANES - 1) / LANES * LANES;
    }
    critic_begin = shard_size;
    if (has_critic) lay(critic);
    shard_storage.resize((size_t)shard_size * MOST_SHARDS + 16);
    shards = (float*)(((uintptr_t)shard_storage.data() + 63) & ~(uintptr_t)63);
    pool.reset(new Pool(threads));
    if (!memory.layers.empty()) pool->make_room();  // MLPs allocate nothing while they are shared
    for (int rank = 0; rank < pool->size(); rank++) {
      spaces.push_back(std::unique_ptr<Workspace>(new Workspace));
      Workspace& space = *spaces.back();
      space.x.resize(GROUP * width), space.dx.resize(GROUP * inputs), space.d_actor.resize(GROUP * actor.out());
      space.index.resize(GROUP * LANES), space.sums.resize(GROUP);
      if (has_trunk) space.trunk.prepare(trunk, GROUP), space.d_shared.resize(GROUP * trunk.out());
      space.actor.prepare(actor, GROUP), head.prepare(space.head);
      if (has_critic) space.critic.prepare(critic, GROUP), space.d_value.resize(GROUP);
    }
  }

  // Rows, as lanes; beyond `count` the last one again.
  static void load(const float* rows, int64_t stride, int columns, const int64_t* index, int count, vec* to) {
    int i = 0;
    for (; i + LANES <= columns; i += LANES) {
      vec square[LANES];
      for (int l = 0; l < LANES; l++)
        std::memcpy(&square[l], rows + index[l < count ? l : count - 1] * stride + i, sizeof(vec));
      transpose(square, to + i);
    }
    for (int l = 0; l < LANES; l++) {
      const float* row = rows + index[l < count ? l : count - 1] * stride;
      for (int j = i; j < columns; j++) ((float*)(to + j))[l] = row[j];
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

  // Of a group of samples: what the networks see of them.
  void load_group(const float* x, const int64_t* index, int count, Workspace& space) const {
    for (int t = 0; t < num_tiles(count); t++)
      load(x, width, width, index + t * LANES, in_tile(count, t), &space.x[(int64_t)t * width]);
  }
  static const int64_t* in_order(int64_t at, Workspace& space) {
    for (size_t i = 0; i < space.index.size(); i++) space.index[i] = at + (int64_t)i;
    return space.index.data();
  }
  int shared_tile() const { return has_trunk ? trunk.out() : width; }
  const vec* features(const float* theta, Workspace& space, int tiles) const {
    return has_trunk ? forward(trunk, theta, space.x.data(), space.trunk, tiles, width) : space.x.data();
  }
  // Of one tile: the distribution's parameters from the actor's outputs for it.
  void distribution(const float* theta, const vec* out, int tile, Workspace& space) const {
    out += (int64_t)tile * actor.out();
    for (int i = 0; i < head.masks; i++) space.head.mask[i] = space.x[(int64_t)tile * width + inputs + i];
    head.params_from(theta, out, space.head);
  }

  // Actions and what belongs to them, for a group of observations. noise null: the mode. Any output may be null.
  void act_group(const float* theta, const float* x, const float* noise, int count, float* params, float* action,
                 float* log_prob, Workspace& space) const {
    load_group(x, in_order(0, space), count, space);
    const int tiles = (int)num_tiles(count);
    const vec* out = forward(actor, theta, features(theta, space, tiles), space.actor, tiles, shared_tile());
    for (int t = 0; t < tiles; t++) {
      const int64_t at = t * LANES;
      distribution(theta, out, t, space);
      draw_tile(noise ? noise + at * head.noises : nullptr, in_tile(count, t), params ? params + at * head.params : nullptr,
                action ? action + at * head.actions : nullptr, log_prob ? log_prob + at : nullptr, space);
    }
  }

  // As `act_group`, of fewer samples than half a tile, through weights that were turned for them.
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
    head.params_from(theta, h.d_out.data(), h);
    draw_tile(noise, count, params, action, log_prob, space);
  }

  void draw_tile(const float* noise, int count, float* params, float* action, float* log_prob, Workspace& space) const {
    int64_t index[LANES];
    for (int l = 0; l < LANES; l++) index[l] = l;
    HeadScratch& h = space.head;
    if (noise) load(noise, head.noises, head.noises, index, count, h.noise.data());
    head.draw(noise != nullptr, h);
    if (log_prob) {
      const vec chosen = head.measure(false, h).log_prob;
      for (int l = 0; l < count; l++) log_prob[l] = chosen[l];
    }
    if (params) store(h.param.data(), head.params, params, count);
    if (action) store(h.action.data(), head.actions, action, count);
  }

  // body(first sample, samples) for every group of some tiles, all groups being nearly alike.
  template <typename Body>
  void over_groups(int64_t first_tile, int64_t last_tile, int64_t samples, const Body& body) const {
    const int64_t tiles = last_tile - first_tile, groups = (tiles + GROUP - 1) / GROUP;
    for (int64_t i = 0; i < groups; i++) {
      const int64_t begin = (first_tile + tiles * i / groups) * LANES, end = (first_tile + tiles * (i + 1) / groups) * LANES;
      body(begin, (int)(std::min(end, samples) - begin));
    }
  }
  void over_tiles(int64_t samples, const std::function<void(int64_t, int, Workspace&)>& body) {
    const int64_t tiles = num_tiles(samples);
    auto part = [&](int rank, int size) {
      over_groups(tiles * rank / size, tiles * (rank + 1) / size, samples,
                  [&](int64_t at, int count) { body(at, count, *spaces[rank]); });
    };
    if (samples < 64) part(0, 1);  // waking somebody takes longer
    else pool->run([&](int rank) { part(rank, pool->size()); });
  }

  void values(const float* theta, const float* x, int64_t samples, float* out) {
    over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      const int tiles = (int)num_tiles(count);
      load_group(x, in_order(at, space), count, space);
      const vec* v = forward(critic, theta, features(theta, space, tiles), space.critic, tiles, shared_tile());
      for (int i = 0; i < count; i++) out[at + i] = v[i / LANES][i % LANES];
    });
  }

  // Outputs of actor and critic side by side, `[samples, outputs + 1]`, before any distribution is made of them.
  void outputs(const float* theta, const float* x, int64_t samples, float* out) {
    const int columns = head.outputs + (has_critic ? 1 : 0);
    over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      const int tiles = (int)num_tiles(count);
      load_group(x, in_order(at, space), count, space);
      const vec* shared = features(theta, space, tiles);
      const vec* a = forward(actor, theta, shared, space.actor, tiles, shared_tile());
      const vec* v = has_critic ? forward(critic, theta, shared, space.critic, tiles, shared_tile()) : nullptr;
      for (int i = 0; i < count; i++) {
        const int t = i / LANES, l = i % LANES;
        for (int o = 0; o < head.outputs; o++) out[(at + i) * columns + o] = a[(int64_t)t * actor.out() + o][l];
        if (v) out[(at + i) * columns + head.outputs] = v[t][l];
      }
    });
  }

  // The way back from d(outputs), `[samples, outputs + 1]`, to the gradient of all weights (log_std apart) and, where
  // dx is not null, of x.
  void outputs_gradient(const float* theta, const float* x, const float* d, int64_t samples, float* gradient,
                        float* dx) {
    const int columns = head.outputs + (has_critic ? 1 : 0);
    sharded(samples, gradient, [&](int64_t at, int count, Workspace& space, float* g) {
      const int tiles = (int)num_tiles(count);
      const int64_t* index = in_order(at, space);
      load_group(x, index, count, space);
      const vec* shared = features(theta, space, tiles);
      forward(actor, theta, shared, space.actor, tiles, shared_tile());
      if (has_critic) forward(critic, theta, shared, space.critic, tiles, shared_tile());
      for (int i = 0; i < tiles * LANES; i++) {
        const int t = i / LANES, l = i % LANES;
        const float* row = d + (at + i) * columns;
        for (int o = 0; o < head.outputs; o++) space.d_actor[(int64_t)t * actor.out() + o][l] = i < count ? row[o] : 0.0f;
        if (has_critic) space.d_value[t][l] = i < count ? row[head.outputs] : 0.0f;
      }
      back(theta, shared, space, g, ADD, tiles, true, has_critic, dx != nullptr);
      if (dx) store_inputs(space, dx, index, count);
    });
  }

  // Mean KL(old‖new) and surrogate terms without gradients; kl, where not null, gets each sample's.
  Sums evaluate(const float* theta, const LossSpec& spec, const Batch& batch, float* kl) {
    std::vector<Sums> sums(num_tiles(batch.size));
    over_tiles(batch.size, [&](int64_t at, int count, Workspace& space) {
      loss_group(BOTH, theta, spec, batch, in_order(at, space), count, {1.0f, 0.0f, 1.0f}, space, nullptr, ADD,
                 kl ? kl + at : nullptr);
      std::copy_n(space.sums.begin(), num_tiles(count), sums.begin() + at / LANES);
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
    for (auto& space : spaces) space->trunk.prepare_tangents(), space->actor.prepare_tangents();
    sharded(batch.size, product, [&](int64_t at, int count, Workspace& space, float* g) {
      const int tiles = (int)num_tiles(count);
      const int64_t* index = in_order(at, space);
      load_group(batch.x, index, count, space);
      const vec* shared = features(theta, space, tiles);
      const vec* tangent = nullptr;
      if (along) {
        for (int t = 0; t < tiles; t++)
          load(along, inputs, inputs, index + t * LANES, in_tile(count, t), &space.dx[(int64_t)t * inputs]);
        tangent = space.dx.data();
      }
      if (has_trunk) tangent = forward_tangent(trunk, theta, direction, space.x.data(), tangent, space.trunk, tiles, width);
      const vec* out = forward(actor, theta, shared, space.actor, tiles, shared_tile());
      tangent = forward_tangent(actor, theta, direction, shared, tangent, space.actor, tiles, shared_tile());
      HeadScratch& h = space.head;
      for (int t = 0; t < tiles; t++) {
        const int here = in_tile(count, t);
        distribution(theta, out, t, space);
        vec weight = all(scale);
        if (batch.weight) weight *= load(batch.weight, index + t * LANES, here);
        for (int l = here; l < LANES; l++) weight[l] = 0.0f;
        head.fisher(direction, tangent + (int64_t)t * actor.out(), weight, h, g);
        std::copy_n(h.d_out.begin(), actor.out(), space.d_actor.begin() + (int64_t)t * actor.out());
      }
      back(theta, shared, space, g, ADD, tiles, true, false, along != nullptr);
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

  void back(const float* theta, const vec* shared, Workspace& space, float* g, Start start, int tiles, bool with_actor,
            bool with_critic, bool with_inputs = false) {
    vec* d_inputs = with_inputs ? space.dx.data() : nullptr;
    vec* d_shared = has_trunk ? space.d_shared.data() : d_inputs;
    if (with_inputs) std::fill(space.dx.begin(), space.dx.end(), vec{});
    if (has_trunk) std::fill(space.d_shared.begin(), space.d_shared.end(), vec{});
    const int from = shared_tile();
    if (with_actor) backward(actor, theta, shared, space.d_actor.data(), space.actor, g, d_shared, tiles, from, start);
    if (with_critic) backward(critic, theta, shared, space.d_value.data(), space.critic, g, d_shared, tiles, from, start);
    if (has_trunk) backward(trunk, theta, space.x.data(), d_shared, space.trunk, g, d_inputs, tiles, width, start);
  }

  // Of a group: its gradient with respect to what the networks see.
  void store_inputs(const Workspace& space, float* to, const int64_t* index, int count) const {
    for (int i = 0; i < count; i++) {
      const vec* from = &space.dx[(int64_t)(i / LANES) * inputs];
      for (int j = 0; j < inputs; j++) to[index[i] * inputs + j] = from[j][i % LANES];
    }
  }

  enum Which { ACTOR = 1, CRITIC = 2, BOTH = 3 };
  // Of a minibatch: 1 over its weight; advantages are seen as (A − shift)·stretch.
  struct Scale {
    float share, shift, stretch;
  };

  // Forward, loss, and (g not null) backward, of one group; `start`: ZERO where g is still to be written.
  // `space.sums` gets the terms of each tile.
  void loss_group(int which, const float* theta, const LossSpec& spec, const Batch& batch, const int64_t* index, int count,
                  Scale scale, Workspace& space, float* g, Start start, float* kl) {
    const int tiles = (int)num_tiles(count);
    const bool with_actor = (which & ACTOR) && wants_actor(spec), with_value = (which & CRITIC) && wants_critic(spec);
    load_group(batch.x, index, count, space);
    const vec* shared = features(theta, space, tiles);
    std::fill_n(space.sums.begin(), tiles, Sums{});
    if (with_actor) {
      const vec* out = forward(actor, theta, shared, space.actor, tiles, shared_tile());
      for (int t = 0; t < tiles; t++) {
        distribution(theta, out, t, space);
        actor_tile(spec, batch, index + t * LANES, in_tile(count, t), scale, space, g, space.sums[t],
                   kl ? kl + t * LANES : nullptr);
        if (g) std::copy_n(space.head.d_out.begin(), actor.out(), space.d_actor.begin() + (int64_t)t * actor.out());
      }
    }
    if (with_value) {
      const vec* v = forward(critic, theta, shared, space.critic, tiles, shared_tile());
      for (int t = 0; t < tiles; t++)
        space.d_value[t] = critic_tile(spec, batch, index + t * LANES, in_tile(count, t), scale, v[t], space.sums[t]);
    }
    if (!g) return;
    back(theta, shared, space, g, start, tiles, with_actor, with_value, d_inputs[0] != nullptr);
    if (d_inputs[0]) store_inputs(space, d_inputs[which == CRITIC], index, count);
  }

  static vec weights(const Batch& batch, const int64_t* index, int count) {
    vec weight = batch.weight ? load(batch.weight, index, count) : all(1.0f);
    for (int l = count; l < LANES; l++) weight[l] = 0.0f;
    return weight;
  }

  // The surrogate, KL and entropy of a tile whose distribution is in the head's scratch, and (g not null) their d_out.
  void actor_tile(const LossSpec& spec, const Batch& batch, const int64_t* index, int count, Scale scale,
                  Workspace& space, float* g, Sums& sums, float* kl_out) const {
    const vec weight = weights(batch, index, count), share = weight * scale.share;
    HeadScratch& h = space.head;
    load(batch.action, head.actions, head.actions, index, count, h.action.data());
    if (spec.with_kl) load(batch.params, head.params, head.params, index, count, h.old.data());
    const auto [log_prob, entropy, kl] = head.measure(spec.with_kl, h);
    if (kl_out)
      for (int l = 0; l < count; l++) kl_out[l] = kl[l];
    const vec advantage = batch.advantage ? (load(batch.advantage, index, count) - scale.shift) * scale.stretch : vec{};
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
      head.gradient(spec.with_kl, {share * of_log_prob, share * (float)-spec.entropy_coef, share * (float)spec.kl_coef}, h,
                    g);
  }

  // The value loss of a tile; returns its derivative with respect to v.
  vec critic_tile(const LossSpec& spec, const Batch& batch, const int64_t* index, int count, Scale scale, vec v,
                  Sums& sums) const {
    const vec weight = weights(batch, index, count), target = load(batch.target, index, count);
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
    return weight * scale.share * (float)spec.value_coef * slope;
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
        // Where every layer of the MLPs gets a gradient the first group writes it; else it is added to zeros.
        Start start = two || (wants_actor(spec) && (wants_critic(spec) || !has_critic)) ? ZERO : ADD;
        if (start == ADD) std::memset(g, 0, sizeof(float) * shard_size);
        else if (!critic) {
          std::memset(g, 0, sizeof(float) * memory_end);
          std::memset(g + parts_begin, 0, sizeof(float) * (critic_begin - parts_begin));
        }
        Sums sums{};
        Workspace& space = *spaces[rank];
        over_groups(tiles * shard / count, tiles * (shard + 1) / count, samples, [&](int64_t at, int here) {
          for (int i = 0; i < here; i++) space.index[i] = index ? index[at + i] : at + i;
          loss_group(two ? critic ? CRITIC : ACTOR : BOTH, theta, spec, batch, space.index.data(), here,
                     {(float)(1.0 / weights), shift, stretch}, space, g, start, nullptr);
          start = ADD;
          for (int t = 0; t < num_tiles(here); t++) add(sums, space.sums[t]);
        });
        task_sums_[2 * shard + critic] = sums;
      }
    pool->barrier().wait();
    Sums total{};
    for (int task = 0; task < 2 * count; task++)
      if (two || task % 2 == 0) add(total, task_sums_[task]);
    total.weight = counted;
    return total;
  }

  // Where each layer's gradient stands in a shard and in the parameter vector.
  struct Piece {
    int64_t from, to;
    int rows, columns, stride;
    bool lanes /* a bias */, trained, critic;
  };

  // Adds the shards into g, each rank its own layers; the square of its norm, added up in the order of the layers.
  void reduce(int rank, float* g, int64_t samples, double* square) {
    const int count = num_shards(samples);
    for (int piece = 0; piece < (int)pieces_.size(); piece++) {
      const Piece& p = pieces_[piece];
      if (!mine(rank, p.critic, piece)) continue;
      const double sum = p.lanes ? add_lanes(p, count, g + p.to) : add_shards(p, count, g + p.to);
      piece_squares_[piece] = p.trained ? sum : 0.0;
    }
    pool->barrier().wait();
    if (!square) return;
    *square = 0.0;
    for (double s : piece_squares_) *square += s;
  }

  // to = Σ over the shards; returns the square of its norm.
  double add_shards(const Piece& p, int count, float* to) const {
    vec squares{};
    float rest = 0.0f;
    for (int row = 0; row < p.rows; row++, to += p.columns) {
      const float* from = shards + p.from + (int64_t)row * p.stride;
      int i = 0;
      for (; i + LANES <= p.columns; i += LANES) {
        vec x = *(const vec*)(from + i);
        for (int shard = 1; shard < count; shard++) x += *(const vec*)(from + shard * shard_size + i);
        std::memcpy(to + i, &x, sizeof x);
        squares += x * x;
      }
      for (; i < p.columns; i++) {
        float x = from[i];
        for (int shard = 1; shard < count; shard++) x += from[shard * shard_size + i];
        to[i] = x;
        rest += x * x;
      }
    }
    return sum_of_double(squares) + rest;
  }

  // Of biases: one number for each unit, kept lane by lane. Their lanes are added up as many units at a time.
  double add_lanes(const Piece& p, int count, float* to) const {
    double sum = 0.0;
    for (int row = 0; row < p.rows; row += LANES) {
      const int here = std::min(LANES, p.rows - row);
      vec units[LANES] = {}, lanes[LANES];
      for (int i = 0; i < here; i++) {
        const float* from = shards + p.from + (int64_t)(row + i) * LANES;
        units[i] = *(const vec*)from;
        for (int shard = 1; shard < count; shard++) units[i] += *(const vec*)(from + shard * shard_size);
      }
      transpose(units, lanes);
      for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
      std::memcpy(to + row, &lanes[0], sizeof(float) * here);
      sum += sum_of_double(lanes[0] * lanes[0]);
    }
    return sum;
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

  // `__restrict`: Adam took 0.78 ns a parameter without it and 0.28 with it, in L2.
  void descend(int rank, float* __restrict theta, const float* __restrict g, float* __restrict first,
               float* __restrict second, int64_t step, const OptimizerSpec& spec, double norm) const {
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
        over_groups(tiles * shard / count, tiles * (shard + 1) / count, samples,
                    [&](int64_t at, int here) { body(at, here, *spaces[rank], g); });
      }
      pool->barrier().wait();
      if (after) {
        (*after)(rank);
        pool->barrier().wait();
      }
      reduce(rank, result, samples, nullptr);
    });
  }

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
                             std::min(most, layer.out - row), layer.in, layer.stride, false,
                             layer.weight >= first_trained, of_critic});
        pieces_.push_back({layer.shard + (int64_t)layer.out * layer.stride, layer.bias, layer.out, 1, LANES, true,
                           layer.bias >= first_trained, of_critic});
      }
    };
    lay(memory, false);
    if (has_trunk) lay(trunk, false);
    lay(actor, false);
    for (const Part& part : head.parts)
      if (part.log_std >= 0)
        pieces_.push_back({part.shard, part.log_std, 1, part.size, 0, false, part.log_std >= first_trained, false});
    if (has_critic) lay(critic, true);
    piece_squares_.assign(pieces_.size(), 0.0);
  }
};

}  // namespace surefoot
