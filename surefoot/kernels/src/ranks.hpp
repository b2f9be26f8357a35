// Which thread does what. Results do not depend on it.
#pragma once
#include <cstdint>
#include <utility>

namespace surefoot {

struct Ranks {
  int size = 1;
  bool apart = false;  // actor and critic are learned separately

  // Whether a rank handles piece `number` of the actor (or of all) or of the critic. Half of the ranks handle each, so that
  // weights, gradients and moments of one network stay on the same core.
  bool mine(int rank, bool of_critic, int number) const {
    const int half = size / 2;
    if (!apart) return number % size == rank;
    if (size % 2) return (2 * number + of_critic) % size == rank;
    return rank == (of_critic ? half : 0) + number % half;
  }

  // The parameters that a rank updates: a share of one network's, as in `mine`, or of all.
  std::pair<int64_t, int64_t> range(int rank, int64_t parameters, int64_t of_actor) const {
    const int half = size / 2;
    if (!apart || size % 2) return {parameters * rank / size, parameters * (rank + 1) / size};
    const bool of_critic = rank >= half;
    const int64_t first = of_critic ? of_actor : 0, length = of_critic ? parameters - of_actor : of_actor;
    const int at = of_critic ? rank - half : rank;
    return {first + length * at / half, first + length * (at + 1) / half};
  }
};

}  // namespace surefoot
