// An actor-critic with or without memory: a GRU or LSTM followed by the `Engine`, or the engine alone.
//
// With a memory, the samples of a batch are time-major, [L, S], and minibatches consist of whole sequences. Recurrence and
// MLPs share the shards: a shard's sequences, like its tiles, depend only on the size of the batch.
#pragma once
#include "acting.hpp"
#include "fisher.hpp"
#include "memory.hpp"
#include "memory_tangent.hpp"
#include "minibatch.hpp"
#include "outputs.hpp"
#include "sequences.hpp"

namespace surefoot {

class Recurrent {
 public:
  Engine mlps;
  Chain memory;  // two layers, for the input and for the hidden state; or none
  bool lstm = false;

  Recurrent() = default;
  Recurrent(const Recurrent&) = delete;
  Recurrent& operator=(const Recurrent&) = delete;

  // Call once the parts are set.
  void finish(int threads) {
    mlps.shards.lay(memory, mlps.first_trained);
    mlps.finish(threads);
    if (has_memory()) pool().make_room();  // MLPs alone allocate nothing on the threads
  }

  Pool& pool() { return *mlps.pool; }
  bool has_memory() const { return !memory.layers.empty(); }
  int row() const { return has_memory() ? of_input().in + mlps.head.masks : mlps.width; }  // numbers in a row of x
  int state() const { return (lstm ? 2 : 1) * mlps.inputs; }

  void act(const float* theta, const float* x, const float* noise, int64_t samples, const uint8_t* start,
           const float* before, float* after, const Drawn& to) {
    if (has_memory()) features_.resize(samples * mlps.width);
    mlps.over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      const float* seen = x + at * row();
      if (has_memory()) {
        remember(over(theta, 1, samples, start), theta, x, before, after, at, at + count);
        seen = features_.data() + at * mlps.width;
      }
      act_group(mlps, theta, seen, noise ? noise + at * mlps.head.noises : nullptr, count, to.from(at, mlps.head), space);
    });
  }

  // One step of a few sequences with the weights in `packed`; gives the MLPs' inputs, rows of `width`.
  const float* step_few(const float* theta, const Packed& packed, const float* x, const uint8_t* start, float* state,
                        int count) {
    const Recurrence r = over(theta, 1, count, start);
    features_.resize((size_t)count * mlps.width), gates_.resize((size_t)count * r.gates()), made_.resize(r.gates());
    projected(r, theta, x).lanes(0, 0, count, made_.data());
    store_rows(made_.data(), r.gates(), count, gates_.data(), r.gates());
    Given given(r, gates_.data());
    for (const Group& group : groups_of(r))
      recur(r, given, packed, group, state, features_.data(), mlps.width, state, nullptr);
    copy_masks(x, 0, count);
    return features_.data();
  }
  // The same for any number of sequences.
  const float* step(const float* theta, const float* x, const uint8_t* start, float* state, int64_t count) {
    features_.resize(count * mlps.width);
    remember(over(theta, 1, count, start), theta, x, state, state, 0, count);
    return features_.data();
  }
  Packed packed(const float* theta) const {
    Packed found;
    found.pack(over(theta, 1, 1, nullptr));
    return found;
  }

  // The batch as the MLPs' inputs; nothing is kept for a backward pass.
  Batch remembered(const float* theta, const Batch& batch) {
    if (!has_memory()) return batch;
    const Recurrence r = over(theta, batch);
    groups_ = groups_of(r);
    packed_.resize(pool().size()), features_.resize(batch.size * mlps.width);
    pool().run([&](int rank) { forward_part(rank, theta, r, batch, false); });
    return seen_of(batch);
  }

  void fisher_product(const float* theta, const float* direction, const Batch& batch, float* product) {
    if (!has_memory()) return surefoot::fisher_product(mlps, theta, direction, batch, product);
    prepare(theta, batch, batch.sequences, true);
    const Recurrence r = over(theta, batch);
    tangents_.resize(batch.size * mlps.inputs);
    pool().run([&](int rank) {
      forward_part(rank, theta, r, batch, true);
      for (int64_t at = rank * LANES; at < r.sequences; at += pool().size() * LANES)
        recur_tangent(r, {batch.x, row(), of_input(), of_hidden()}, theta, direction, batch.memory, at,
                      (int)std::min<int64_t>(LANES, r.sequences - at), tangents_.data());
    });
    const std::function<void(int)> back = [&](int rank) { backward_part(rank, r, batch, false); };
    surefoot::fisher_product(mlps, theta, direction, seen_of(batch), product, tangents_.data(), &back);
  }

  // Call before gradients of `units` samples (or sequences) at a time; `all`: include untrained parameters.
  void prepare(const float* theta, const Batch& batch, int64_t units, bool all) {
    if (!has_memory()) return;
    const int64_t steps = batch.size / batch.sequences, samples = steps * units;
    through_time_ = all || of_hidden().weight >= mlps.first_trained;
    if (!through_time_) {  // the critic alone: its inputs do not change
      fixed_ = remembered(theta, batch);
      mlps.d_inputs[0] = mlps.d_inputs[1] = nullptr;
      rows_.assign(pool().size(), std::vector<int64_t>(samples));
      return;
    }
    arrange(batch, units);
    const Recurrence r = over(nullptr, steps, units, nullptr);
    features_.resize(samples * mlps.width), gates_.resize(samples * r.gates());
    for (int i = 0; i < 2; i++) {
      d_features_[i].resize(samples * mlps.inputs);
      mlps.d_inputs[i] = d_features_[i].data();
    }
    packed_.resize(pool().size()), scratch_.resize(pool().size());
    for (auto& rows : scratch_) rows.resize((size_t)LANES * std::max(of_hidden().stride, of_input().stride) + 16);
    taken_.prepare(batch, units, {row(), mlps.head.actions, mlps.head.params, state()});
  }

  // Within `prepare`d room: the next minibatch has this many samples (or sequences). Ends with a barrier.
  void arrange(int rank, const Batch& batch, int64_t units) {
    if (!has_memory() || !through_time_ || !units) return;
    if (rank == 0) arrange(batch, units);
    pool().barrier().wait();
  }

  // This rank's part of a minibatch's gradient. Ends with a barrier; every rank gets the sums of all. `index` is of
  // samples or, with a memory, of sequences.
  Sums gradient(int rank, const float* theta, const LossSpec& spec, const Minibatch& m, float* g) {
    if (!has_memory()) return learning_.gradient(rank, theta, spec, m, g);
    if (!through_time_) {
      std::vector<int64_t>& rows = rows_[rank];
      rows.resize(m.batch.size / m.batch.sequences * m.size);
      for (size_t i = 0; m.index && i < rows.size(); i++)
        rows[i] = i / m.size * m.batch.sequences + m.index[i % m.size];
      const int64_t* index = m.index ? rows.data() : nullptr;
      return learning_.gradient(rank, theta, spec, {fixed_, index, (int64_t)rows.size(), m.normalize, m.shared, m.processes}, g);
    }
    Batch batch = m.batch;
    if (m.index) {
      batch = taken_.take(rank, pool().size(), m.batch, m.index, m.size);
      pool().barrier().wait();
    }
    const Recurrence r = over(theta, batch);
    forward_part(rank, theta, r, batch, true);
    pool().barrier().wait();
    const Batch seen = seen_of(batch);
    const Sums found = learning_.shards(rank, theta, spec, {seen, nullptr, batch.size, m.normalize, m.shared, m.processes});
    backward_part(rank, r, batch, in_two(mlps, spec));
    pool().barrier().wait();
    mlps.shards.add_up(rank, g, batch.size, pool().barrier());
    return found;
  }

 private:
  void arrange(const Batch& batch, int64_t units) {
    int64_t kept = 0;
    groups_ = groups_of(over(nullptr, batch.size / batch.sequences, units, nullptr), &kept);
    kept_.resize(kept);
  }

  const Layer& of_input() const { return memory.layers[0]; }
  const Layer& of_hidden() const { return memory.layers[1]; }

  Recurrence over(const float* theta, int64_t steps, int64_t sequences, const uint8_t* start) const {
    const bool known = theta != nullptr;
    return {lstm, mlps.inputs, steps, sequences, known ? theta + of_hidden().weight : nullptr,
            known ? theta + of_hidden().bias : nullptr, start};
  }
  Recurrence over(const float* theta, const Batch& batch) const {
    return over(theta, batch.size / batch.sequences, batch.sequences, batch.start);
  }
  Projected projected(const Recurrence& r, const float* theta, const float* x) const {
    return {r, x, of_input().in, row(), theta + of_input().weight, theta + of_input().bias};
  }
  Batch seen_of(const Batch& batch) const {
    Batch seen = batch;
    seen.x = features_.data();
    return seen;
  }

  void copy_masks(const float* x, int64_t begin, int64_t end) {
    const int masks = mlps.head.masks;
    for (int64_t i = begin; masks && i < end; i++)
      std::memcpy(features_.data() + i * mlps.width + mlps.inputs, x + i * row() + of_input().in, sizeof(float) * masks);
  }

  // One step of the sequences from `begin` to `end`.
  void remember(const Recurrence& r, const float* theta, const float* x, const float* before, float* after, int64_t begin,
                int64_t end) {
    Projected from = projected(r, theta, x);
    for (int64_t at = begin; at < end; at += LANES)
      recur_lanes(r, from, {at, (int)std::min<int64_t>(LANES, end - at), true, 0}, before, features_.data(), mlps.width,
                  after, nullptr);
    copy_masks(x, begin, end);
  }

  // Computes this rank's part of the MLPs' inputs.
  void forward_part(int rank, const float* theta, const Recurrence& r, const Batch& batch, bool keep) {
    const int ranks = pool().size();
    Projected from = projected(r, theta, batch.x);
    if (!groups_.back().lanes) packed_[rank].pack(r);
    for (size_t at = rank; at < groups_.size(); at += ranks)
      recur(r, from, packed_[rank], groups_[at], batch.memory, features_.data(), mlps.width, nullptr,
            keep ? kept_.data() : nullptr);
    copy_masks(batch.x, batch.size * rank / ranks, batch.size * (rank + 1) / ranks);
  }

  // Computes this rank's shards from d(features). `both`: actor and critic have separate ones.
  void backward_part(int rank, const Recurrence& r, const Batch& batch, bool both) {
    const int64_t groups = (int64_t)groups_.size();
    const int count = mlps.shards.count(batch.size), inputs = mlps.inputs;
    float *d = d_features_[0].data(), *rows = aligned(scratch_[rank]);
    for (int shard = rank; shard < count; shard += pool().size()) {
      float* g = mlps.shards.at(shard);
      for (int64_t at = groups * shard / count; at < groups * (shard + 1) / count; at++) {
        const Group& group = groups_[at];
        for (int64_t t = 0; both && t < r.steps; t++) {
          const int64_t first = (t * r.sequences + group.begin) * inputs;
          for (int64_t i = first; i < first + (int64_t)group.count * inputs; i++) d[i] += d_features_[1][i];
        }
        recur_back(r, packed_[rank], group, kept_.data(), d, nullptr, gates_.data(), nullptr, rows, g + of_hidden().shard);
        if (group.lanes) {
          for (int64_t t = 0; t < r.steps; t++) input_back(r, batch, t, group.begin, group.count, 1, rows, g);
        } else {
          for (int n = 0; n < group.count; n++)
            for (int64_t t = 0; t < r.steps; t += LANES)
              input_back(r, batch, t, group.begin + n, (int)std::min<int64_t>(LANES, r.steps - t), r.sequences, rows, g);
        }
      }
    }
  }

  // The samples of a tile: sequence s at step t, and others `apart` samples apart.
  void input_back(const Recurrence& r, const Batch& batch, int64_t t, int64_t s, int count, int64_t apart, float* rows,
                  float* g) {
    const Layer& layer = of_input();
    const int64_t first = t * r.sequences + s;
    std::vector<vec> d(layer.out), x(layer.in);
    load_rows(gates_.data() + first * layer.out, apart * layer.out, layer.out, count, d.data());
    load_rows(batch.x + first * row(), apart * row(), layer.in, count, x.data());
    for (int l = count; l < LANES; l++)
      for (vec& of_gate : d) of_gate[l] = 0.0f;
    outer(layer, d.data(), x.data(), rows, g + layer.shard);
  }

  Learning learning_{mlps};
  bool through_time_ = true;                   // whether the memory is learned; otherwise only the MLPs, from `fixed_`
  Batch fixed_{};
  std::vector<std::vector<int64_t>> rows_;     // of each rank
  std::vector<Group> groups_;
  std::vector<Packed> packed_;                 // of each rank
  std::vector<std::vector<float>> scratch_;    // of each rank
  std::vector<float> features_, d_features_[2], gates_, tangents_;
  std::vector<vec> kept_, made_;
  Sequences taken_;
};

}  // namespace surefoot
