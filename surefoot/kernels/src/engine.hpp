// An actor-critic made of linear layers: its parts, its threads with their workspaces, and how work is split among them.
// The computations are in acting.hpp, outputs.hpp, losses.hpp, minibatch.hpp and fisher.hpp.
//
// A batch is split into tiles, which have one sample per register lane, and the tiles into shards (shards.hpp). Within a
// shard, a group of tiles goes through a layer together, so that each weight is fetched once for all of them.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "heads.hpp"
#include "net.hpp"
#include "pool.hpp"
#include "shards.hpp"
#include "specs.hpp"
#include "tiles.hpp"

namespace surefoot {

// The workspace of one group, [tile][…]; the head's is for one tile.
struct Workspace {
  std::vector<vec> x, dx, d_shared, d_actor, d_value;
  std::vector<int64_t> index;
  std::vector<Sums> sums;
  Scratch trunk, actor, critic;
  HeadScratch head;
};

class Engine {
 public:
  int inputs = 0, width = 0;  // a row of x: inputs, then the mask
  bool has_trunk = false, has_critic = false;
  Chain trunk, actor, critic;
  Head head;
  int64_t size = 0, actor_size = 0, first_trained = 0;
  Shards shards;
  int64_t begin = 0, parts_begin = 0, critic_begin = 0;  // offsets: ours in a shard, log_std's, the critic's
  std::unique_ptr<Pool> pool;
  std::vector<std::unique_ptr<Workspace>> spaces;
  // Receives the loss's gradient with respect to the MLPs' inputs, [samples, inputs]; null: not needed. Actor and critic
  // that are learned separately have one each.
  float* d_inputs[2] = {};

  // Tiles that go through a layer together. The weights' gradient, which is too large for the near caches when layers
  // are wide, is read and written once per group: at 1024 units, groups of 64 samples were 10 to 13 % slower, 256 were
  // 3 % slower, and 1024 no faster. It makes no difference for narrow layers.
  static constexpr int GROUP = 512 / LANES;
  // Actor and critic that share nothing are learned separately: each keeps its own weights and gradient in cache, perhaps
  // on its own thread, and there is nothing to add up at the end.
  bool apart() const { return has_critic && !has_trunk; }
  int num_tasks(int64_t samples) const { return shards.count(samples) * (apart() ? 2 : 1); }

  // Call once the parts are set: lays out gradients (after what is already laid out), threads and workspaces.
  void finish(int threads) {
    head.outputs = std::max(head.outputs, actor.out());
    begin = shards.size;
    if (has_trunk) shards.lay(trunk, first_trained);
    shards.lay(actor, first_trained);
    parts_begin = shards.size;
    for (Part& part : head.parts) shards.lay(part, first_trained);
    critic_begin = shards.size;
    if (has_critic) shards.lay(critic, first_trained, true);
    shards.allocate();
    pool.reset(new Pool(threads));
    shards.ranks = {pool->size(), apart()};
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

  // Loads the networks' inputs for a group of samples.
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
  // Computes the distribution's parameters of one tile from the actor's outputs.
  void distribution(const float* theta, const vec* out, int tile, Workspace& space) const {
    out += (int64_t)tile * actor.out();
    for (int i = 0; i < head.masks; i++) space.head.mask[i] = space.x[(int64_t)tile * width + inputs + i];
    head.params_from(theta, out, space.head);
  }

  // Backward pass of a group, from `space.d_actor` and `space.d_value` to the shard g and (with_inputs) to `space.dx`.
  void back(const float* theta, const vec* shared, Workspace& space, float* g, Start start, int tiles, bool with_actor,
            bool with_critic, bool with_inputs = false) const {
    vec* to_inputs = with_inputs ? space.dx.data() : nullptr;
    vec* d_shared = has_trunk ? space.d_shared.data() : to_inputs;
    if (with_inputs) std::fill(space.dx.begin(), space.dx.end(), vec{});
    if (has_trunk) std::fill(space.d_shared.begin(), space.d_shared.end(), vec{});
    const int from = shared_tile();
    if (with_actor) backward(actor, theta, shared, space.d_actor.data(), space.actor, g, d_shared, tiles, from, start);
    if (with_critic) backward(critic, theta, shared, space.d_value.data(), space.critic, g, d_shared, tiles, from, start);
    if (has_trunk) backward(trunk, theta, space.x.data(), d_shared, space.trunk, g, to_inputs, tiles, width, start);
  }
  // Stores a group's gradient with respect to the networks' inputs.
  void store_inputs(const Workspace& space, float* to, const int64_t* index, int count) const {
    for (int i = 0; i < count; i++) {
      const vec* from = &space.dx[(int64_t)(i / LANES) * inputs];
      for (int j = 0; j < inputs; j++) to[index[i] * inputs + j] = from[j][i % LANES];
    }
  }

  // Calls body(first sample, samples) for groups of tiles of nearly equal size.
  template <typename Body>
  void over_groups(int64_t first_tile, int64_t last_tile, int64_t samples, const Body& body) const {
    const int64_t tiles = last_tile - first_tile, groups = (tiles + GROUP - 1) / GROUP;
    for (int64_t i = 0; i < groups; i++) {
      const int64_t from = (first_tile + tiles * i / groups) * LANES, to = (first_tile + tiles * (i + 1) / groups) * LANES;
      body(from, (int)(std::min(to, samples) - from));
    }
  }
  // The same for all samples, shared by the threads.
  void over_tiles(int64_t samples, const std::function<void(int64_t, int, Workspace&)>& body) {
    const int64_t tiles = num_tiles(samples);
    auto part = [&](int rank, int ranks) {
      over_groups(tiles * rank / ranks, tiles * (rank + 1) / ranks, samples,
                  [&](int64_t at, int count) { body(at, count, *spaces[rank]); });
    };
    if (samples < 64) part(0, 1);  // waking another thread takes longer
    else pool->run([&](int rank) { part(rank, pool->size()); });
  }
  // The same with shards, which are summed after `after` has added to them; no optimizer.
  template <typename Body>
  void sharded(int64_t samples, float* result, const Body& body, const std::function<void(int)>* after = nullptr) {
    const int64_t tiles = num_tiles(samples);
    const int count = shards.count(samples);
    pool->run([&](int rank) {
      for (int shard = rank; shard < count; shard += pool->size()) {
        float* g = shards.at(shard);
        std::memset(g, 0, sizeof(float) * shards.size);
        over_groups(tiles * shard / count, tiles * (shard + 1) / count, samples,
                    [&](int64_t at, int here) { body(at, here, *spaces[rank], g); });
      }
      pool->barrier().wait();
      if (after) {
        (*after)(rank);
        pool->barrier().wait();
      }
      shards.add_up(rank, result, samples, pool->barrier());
    });
  }
};

}  // namespace surefoot
