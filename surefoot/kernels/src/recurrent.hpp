// An actor-critic whose MLPs see what a GRU or LSTM remembers: `Engine` behind a memory, or without one `Engine` itself.
//
// The samples of a batch are then time-major, [L, S], and minibatches are made of whole sequences. Recurrence and MLPs
// share the shards: a shard's sequences are given by the batch's size alone, as its tiles are.
#pragma once
#include "engine.hpp"
#include "memory.hpp"

namespace surefoot {

class Recurrent : public Engine {
 public:
  bool lstm = false;
  bool has_memory() const { return !memory.layers.empty(); }
  int row() const { return has_memory() ? of_input().in + head.masks : width; }  // numbers in a row of x
  int state() const { return (lstm ? 2 : 1) * inputs; }

  void act(const float* theta, const float* x, const float* noise, int64_t samples, const uint8_t* start,
           const float* before, float* after, float* params, float* action, float* log_prob) {
    const Recurrence r = over(theta, 1, samples, start);
    if (has_memory()) features_.resize(samples * width);
    over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
      const float* seen = x + at * row();
      if (has_memory()) {
        Projected from(r, x, of_input().in, row(), theta + of_input().weight, theta + of_input().bias);
        for (int64_t tile = at; tile < at + count; tile += LANES)
          recur_lanes(r, from, {tile, (int)std::min<int64_t>(LANES, at + count - tile), true, 0}, before, features_.data(),
                      width, after, nullptr);
        copy_masks(x, at, at + count);
        seen = features_.data() + at * width;
      }
      act_group(theta, seen, noise ? noise + at * head.noises : nullptr, count, params ? params + at * head.params : nullptr,
               action ? action + at * head.actions : nullptr, log_prob ? log_prob + at : nullptr, space);
    });
  }

  // One step of a few sequences, of which `packed` holds the weights: what the MLPs see, rows of `width`.
  const float* step_few(const float* theta, const Packed& packed, const float* x, const uint8_t* start, float* state,
                        int count) {
    const Recurrence r = over(theta, 1, count, start);
    features_.resize((size_t)count * width), gates_.resize((size_t)count * r.gates()), made_.resize(r.gates());
    Projected projected(r, x, of_input().in, row(), theta + of_input().weight, theta + of_input().bias);
    projected.lanes(0, 0, count, made_.data());
    store_rows(made_.data(), r.gates(), count, gates_.data(), r.gates());
    Given given(r, gates_.data());
    for (const Group& group : groups_of(r)) recur(r, given, packed, group, state, features_.data(), width, state, nullptr);
    copy_masks(x, 0, count);
    return features_.data();
  }
  // … and of any number.
  const float* step(const float* theta, const float* x, const uint8_t* start, float* state, int64_t count) {
    const Recurrence r = over(theta, 1, count, start);
    features_.resize(count * width);
    Projected from(r, x, of_input().in, row(), theta + of_input().weight, theta + of_input().bias);
    for (int64_t at = 0; at < count; at += LANES)
      recur_lanes(r, from, {at, (int)std::min<int64_t>(LANES, count - at), true, 0}, state, features_.data(), width, state,
                  nullptr);
    copy_masks(x, 0, count);
    return features_.data();
  }
  Packed packed(const float* theta) const {
    Packed found;
    found.pack(over(theta, 1, 1, nullptr));
    return found;
  }

  void values(const float* theta, const Batch& batch, float* out) {
    const Batch seen = remembered(theta, batch);
    Engine::values(theta, seen.x, seen.size, out);
  }

  Sums evaluate(const float* theta, const LossSpec& spec, const Batch& batch, float* kl) {
    return Engine::evaluate(theta, spec, remembered(theta, batch), kl);
  }

  void fisher_product(const float* theta, const float* direction, const Batch& batch, float* product) {
    if (!has_memory()) return Engine::fisher_product(theta, direction, batch, product);
    prepare(theta, batch, batch.sequences, true);
    const Recurrence r = over(theta, batch);
    Batch seen = batch;
    seen.x = features_.data();
    tangents_.resize(batch.size * inputs);
    pool->run([&](int rank) {
      forward(rank, theta, r, batch, true);
      const int64_t tiles = num_tiles(r.sequences);
      for (int64_t tile = rank; tile < tiles; tile += pool->size())
        tangent(theta, direction, r, batch, tile * LANES, (int)std::min<int64_t>(LANES, r.sequences - tile * LANES));
    });
    const std::function<void(int)> back = [&](int rank) { backward(rank, theta, r, batch, false); };
    Engine::fisher_product(theta, direction, seen, product, tangents_.data(), &back);
  }

  void prepare(const float* theta, const Batch& batch, int64_t units, bool all) override {
    if (!has_memory()) return;
    const int64_t steps = batch.size / batch.sequences, samples = steps * units;
    through_time_ = all || of_hidden().weight >= first_trained;
    if (!through_time_) {  // a critic by itself: what it sees stays as it is
      fixed_ = remembered(theta, batch);
      d_inputs[0] = d_inputs[1] = nullptr;
      rows_.assign(pool->size(), std::vector<int64_t>(samples));
      return;
    }
    const Recurrence r = over(nullptr, steps, units, nullptr);
    int64_t kept = 0;
    groups_ = groups_of(r, &kept);
    kept_.resize(kept);
    features_.resize(samples * width), gates_.resize(samples * r.gates());
    for (int i = 0; i < 2; i++) d_features_[i].resize(samples * inputs), d_inputs[i] = d_features_[i].data();
    packed_.resize(pool->size()), scratch_.resize(pool->size());
    for (auto& rows : scratch_) rows.resize((size_t)LANES * std::max(of_hidden().stride, of_input().stride) + 16);
    const int columns[] = {row(), head.actions, 1, head.params, 1, 1, 1, 1};
    for (int i = 0; i < FIELDS; i++) taken_[i].resize(batch.*fields[i] ? samples * columns[i] : 0);
    started_.resize(samples), states_.resize(units * state());
  }

  // `index`: of sequences, `units` of them.
  Sums learn(int rank, const float* theta, const LossSpec& spec, const Batch& whole, const int64_t* index, int64_t units,
             bool normalize, float* g, double* square) override {
    if (!has_memory()) return Engine::learn(rank, theta, spec, whole, index, units, normalize, g, square);
    if (!through_time_) {
      std::vector<int64_t>& rows = rows_[rank];
      for (size_t i = 0; index && i < rows.size(); i++) rows[i] = i / units * whole.sequences + index[i % units];
      return Engine::learn(rank, theta, spec, fixed_, index ? rows.data() : nullptr, rows.size(), normalize, g, square);
    }
    Batch batch = whole;
    if (index) {
      batch = take(rank, whole, index, units);
      pool->barrier().wait();
    }
    const Recurrence r = over(theta, batch);
    forward(rank, theta, r, batch, true);
    pool->barrier().wait();
    Batch seen = batch;
    seen.x = features_.data();
    const Sums found = minibatch(rank, theta, spec, seen, nullptr, batch.size, normalize);
    backward(rank, theta, r, batch, in_two(spec));
    pool->barrier().wait();
    reduce(rank, g, batch.size, square);
    return found;
  }

 private:
  const Layer& of_input() const { return memory.layers[0]; }
  const Layer& of_hidden() const { return memory.layers[1]; }

  Recurrence over(const float* theta, int64_t steps, int64_t sequences, const uint8_t* start) const {
    if (!has_memory()) return {};
    const bool known = theta != nullptr;
    return {lstm, inputs, steps, sequences, known ? theta + of_hidden().weight : nullptr,
            known ? theta + of_hidden().bias : nullptr, start};
  }
  Recurrence over(const float* theta, const Batch& batch) const {
    return over(theta, batch.size / batch.sequences, batch.sequences, batch.start);
  }

  void copy_masks(const float* x, int64_t begin, int64_t end) {
    for (int64_t i = begin; head.masks && i < end; i++)
      std::memcpy(features_.data() + i * width + inputs, x + i * row() + of_input().in, sizeof(float) * head.masks);
  }

  // This rank's part of what the MLPs will see.
  void forward(int rank, const float* theta, const Recurrence& r, const Batch& batch, bool keep) {
    const int ranks = pool->size();
    Projected from(r, batch.x, of_input().in, row(), theta + of_input().weight, theta + of_input().bias);
    if (!groups_.back().lanes) packed_[rank].pack(r);
    for (size_t at = rank; at < groups_.size(); at += ranks)
      recur(r, from, packed_[rank], groups_[at], batch.memory, features_.data(), width, nullptr,
            keep ? kept_.data() : nullptr);
    copy_masks(batch.x, batch.size * rank / ranks, batch.size * (rank + 1) / ranks);
  }

  // The batch as the MLPs see it; nothing is kept for a way back.
  Batch remembered(const float* theta, const Batch& batch) {
    if (!has_memory()) return batch;
    const Recurrence r = over(theta, batch);
    groups_ = groups_of(r);
    packed_.resize(pool->size()), features_.resize(batch.size * width);
    pool->run([&](int rank) { forward(rank, theta, r, batch, false); });
    Batch seen = batch;
    seen.x = features_.data();
    return seen;
  }

  // This rank's shards, from d(features) on. `both`: actor and critic have sent theirs apart.
  void backward(int rank, const float* theta, const Recurrence& r, const Batch& batch, bool both) {
    const int64_t groups = (int64_t)groups_.size();
    const int count = num_shards(batch.size);
    float *d = d_features_[0].data(), *rows = aligned(scratch_[rank]);
    for (int shard = rank; shard < count; shard += pool->size()) {
      float* g = shards + shard * shard_size;
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

  // Of a tile: the sample of sequence s in step t, and others `apart` samples from each other.
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

  // d(features) along a direction of the parameters, of up to LANES sequences, in rows of H.
  void tangent(const float* theta, const float* direction, const Recurrence& r, const Batch& batch, int64_t begin,
               int count) {
    const int H = r.hidden, G = r.gates(), M = r.state(), F = of_input().in;
    std::vector<vec> x(F), memory_now(M), along(M), input(G), d_input(G), hidden(G), d_hidden(G), part(G);
    load_rows(batch.memory + begin * M, M, M, count, memory_now.data());
    vec *h = memory_now.data(), *c = h + H, *dh = along.data(), *dc = dh + H;
    for (int64_t t = 0; t < r.steps; t++) {
      const ivec same = not_started(r, t, begin, count) > 0.5f;
      for (int i = 0; i < M; i++) h[i] = same ? h[i] : vec{}, dh[i] = same ? dh[i] : vec{};
      load_rows(batch.x + (t * r.sequences + begin) * row(), row(), F, count, x.data());
      dense(theta + of_input().weight, theta + of_input().bias, F, G, x.data(), input.data());
      dense(direction + of_input().weight, direction + of_input().bias, F, G, x.data(), d_input.data());
      dense(r.weight, r.bias, H, G, h, hidden.data());
      dense(direction + of_hidden().weight, direction + of_hidden().bias, H, G, h, d_hidden.data());
      dense(r.weight, nullptr, H, G, dh, part.data());
      for (int i = 0; i < G; i++) d_hidden[i] += part[i];
      for (int i = 0; i < H; i++) {
        vec keep[7], a[4], b[4], d[4];
        for (int k = 0; k < G / H; k++)
          a[k] = input[k * H + i], b[k] = hidden[k * H + i], d[k] = d_input[k * H + i] + d_hidden[k * H + i];
        if (lstm) {
          lstm_cell(a, b, h[i], c[i], keep);
          lstm_tangent(keep, d, dh[i], dc[i]);
        } else {
          gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[i], keep);
          gru_tangent(keep, d, d_input[2 * H + i], d_hidden[2 * H + i], dh[i]);
        }
      }
      store_rows(dh, H, count, tangents_.data() + (t * r.sequences + begin) * H, H);
    }
  }

  // The batch of the sequences at `index`; this rank copies its part of it.
  Batch take(int rank, const Batch& batch, const int64_t* index, int64_t units) {
    const int64_t steps = batch.size / batch.sequences, S = batch.sequences;
    const int64_t first = steps * rank / pool->size(), end = steps * (rank + 1) / pool->size();
    const int columns[] = {row(), head.actions, 1, head.params, 1, 1, 1, 1};
    Batch taken = batch;
    for (int i = 0; i < FIELDS; i++) {
      const float* from = batch.*fields[i];
      if (!from) continue;
      taken.*fields[i] = taken_[i].data();
      for (int64_t t = first; t < end; t++)
        for (int64_t n = 0; n < units; n++)
          std::memcpy(taken_[i].data() + (t * units + n) * columns[i], from + (t * S + index[n]) * columns[i],
                      sizeof(float) * columns[i]);
    }
    for (int64_t t = first; t < end; t++)
      for (int64_t n = 0; n < units; n++) started_[t * units + n] = batch.start[t * S + index[n]];
    for (int64_t n = 0; rank == 0 && n < units; n++)
      std::memcpy(states_.data() + n * state(), batch.memory + index[n] * state(), sizeof(float) * state());
    taken.size = steps * units, taken.sequences = units, taken.start = started_.data(), taken.memory = states_.data();
    return taken;
  }

  static constexpr int FIELDS = 8;
  static constexpr const float* Batch::*fields[FIELDS] = {&Batch::x,         &Batch::action, &Batch::log_prob,
                                                          &Batch::params,    &Batch::advantage, &Batch::target,
                                                          &Batch::value,     &Batch::weight};
  bool through_time_ = true;                   // what is learned now; else the MLPs alone, of `fixed_`
  Batch fixed_{};
  std::vector<std::vector<int64_t>> rows_;     // of each rank
  std::vector<Group> groups_;
  std::vector<Packed> packed_;                 // of each rank
  std::vector<std::vector<float>> scratch_;    // of each rank
  std::vector<float> features_, d_features_[2], gates_, tangents_, taken_[FIELDS], states_;
  std::vector<uint8_t> started_;
  std::vector<vec> kept_, made_;
};

}  // namespace surefoot
