// replay RECORD LIBRARY…: makes the calls that `recording.py` wrote down once more, on this machine, and compares.
//
// Functions are called with all their whole numbers and pointers first and their doubles after them: on x86-64 and arm64
// either kind travels in registers of its own, so that the order between the kinds does not matter.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

enum { VALUE, REGION, HANDLE, STEP };
enum { NOTHING, FLOAT32, FLOAT64, EXACT };
constexpr size_t SLACK = 1 << 20;  // behind regions whose size the recorder did not know
typedef int64_t W;
typedef W (*Function)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, double, double, double, double);

static FILE* file;

template <typename T>
static bool read(T& x) { return std::fread(&x, sizeof x, 1, file) == 1; }
template <typename T>
static T next() {
  T x;
  if (!read(x)) std::fprintf(stderr, "the record ends in the middle of a call\n"), std::exit(2);
  return x;
}
static std::vector<char> bytes(size_t count) {
  std::vector<char> found(count);
  if (std::fread(found.data(), 1, count, file) != count) std::exit(2);
  return found;
}

struct Pointer { int64_t offset; int32_t kind; int64_t value; };

struct Region {
  std::vector<char> storage, after;
  size_t size = 0;  // that is compared; there may be more
  int kind = NOTHING;
  char* at = nullptr;
  std::vector<Pointer> pointers;

  void take() {
    const size_t extent = (size_t)next<int64_t>();
    size = (size_t)next<int64_t>();
    const int64_t place = next<int64_t>();  // within 64 bytes
    kind = next<int32_t>();
    pointers.resize((size_t)next<int32_t>());
    storage.resize(extent + 64 + (kind == NOTHING ? SLACK : 0));
    at = storage.data() + ((uint64_t)(place - (int64_t)(uintptr_t)storage.data()) & 63);
    const std::vector<char> content = bytes(extent);
    std::copy(content.begin(), content.end(), at);
    for (Pointer& p : pointers) p.offset = next<int64_t>(), p.kind = next<int32_t>(), p.value = next<int64_t>();
    after = bytes(size);
  }

  // How far it is from what was recorded, in parts of its largest number.
  template <typename T>
  double distance() const {
    double worst = 0.0, largest = 0.1;
    for (size_t i = 0; i + sizeof(T) <= size; i += sizeof(T)) {
      T mine, theirs;
      std::memcpy(&mine, at + i, sizeof(T)), std::memcpy(&theirs, after.data() + i, sizeof(T));
      if (std::isnan(mine) && std::isnan(theirs)) continue;
      if (mine == theirs) continue;
      if (!std::isfinite(mine) || !std::isfinite(theirs)) return 1e30;
      worst = std::max(worst, std::fabs((double)mine - (double)theirs));
      largest = std::max(largest, std::fabs((double)theirs));
    }
    return worst / largest;
  }
  double distance() const {
    if (kind == FLOAT32) return distance<float>();
    if (kind == FLOAT64) return distance<double>();
    return kind == EXACT && std::memcmp(at, after.data(), size) ? 1e30 : 0.0;
  }
};

int main(int count, char** words) {
  if (count < 3 || !(file = std::fopen(words[1], "rb"))) return std::fprintf(stderr, "replay RECORD LIBRARY…\n"), 2;
  std::vector<void*> libraries;
  for (int i = 2; i < count; i++) {
    libraries.push_back(dlopen(words[i], RTLD_NOW | RTLD_LOCAL));
    if (!libraries.back()) return std::fprintf(stderr, "%s\n", dlerror()), 2;
  }
  const auto symbol = [&](const std::string& name) {
    for (void* library : libraries)
      if (void* found = dlsym(library, name.c_str())) return found;
    std::fprintf(stderr, "there is no %s\n", name.c_str());
    std::exit(2);
  };
  std::vector<W> handles;
  std::map<std::string, std::pair<int, double>> seen;  // calls, largest distance
  int failures = 0;
  for (int32_t length; read(length);) {
    const std::vector<char> text = bytes((size_t)length);
    const std::string name(text.begin(), text.end());
    std::vector<Region> regions((size_t)next<int32_t>());
    for (Region& region : regions) region.take();
    const auto resolve = [&](int kind, W value) -> W {
      if (kind == REGION) return (W)regions[(size_t)value].at;
      if (kind == HANDLE) return handles[(size_t)value];
      return kind == STEP ? (W)symbol("surefoot_classic_step") : value;
    };
    for (Region& region : regions)
      for (const Pointer& p : region.pointers) {
        const W value = resolve(p.kind, p.value);
        std::memcpy(region.at + p.offset, &value, sizeof value);
      }
    W a[18] = {};
    const int32_t num_words = next<int32_t>();
    for (int i = 0; i < num_words; i++) {
      const int32_t kind = next<int32_t>();
      a[i] = resolve(kind, next<int64_t>());
    }
    double d[4] = {};
    const int32_t num_doubles = next<int32_t>();
    for (int i = 0; i < num_doubles; i++) d[i] = next<double>();
    const int32_t made = next<int32_t>();
    const W result = ((Function)symbol(name))(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                                              a[12], a[13], a[14], a[15], a[16], a[17], d[0], d[1], d[2], d[3]);
    if (name.size() > 7 && name.compare(name.size() - 7, 7, "_create") == 0) {
      W handle = result;
      if (made >= 0) std::memcpy(&handle, regions[(size_t)made].at, sizeof handle);
      handles.push_back(handle);
    }
    auto& [calls, worst] = seen[name];
    calls++;
    // Gradient steps of Adam divide by the gradient's size, however small: its sign is all that is left of it.
    const double tolerance = name == "sf_epochs" ? 5e-3 : 1e-4;
    for (size_t i = 0; i < regions.size(); i++) {
      const double distance = regions[i].distance();
      worst = std::max(worst, distance);
      if (distance <= tolerance) continue;
      failures++;
      std::printf("%s, call %d: region %zu of %zu bytes differs by %g\n", name.c_str(), calls, i, regions[i].size, distance);
    }
  }
  for (const auto& [name, found] : seen) std::printf("%-28s %5d calls  %.1e\n", name.c_str(), found.first, found.second);
  return failures ? 1 : 0;
}
