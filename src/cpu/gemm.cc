#include "cpu/gemm.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "cpu/machine.h"

namespace millrace::cpu {
namespace {

// What oneDNN is tried with.
constexpr GemmTiling kTilings[] = {{64, 192},  {64, 384},  {128, 256}, {128, 384},  {192, 256},
                                   {256, 384}, {512, 256}, {512, 512}, {1024, 384}, {1024, 1024}};
constexpr int64_t kMaxTile = 1 << 20;  // more in a cache file is damage
constexpr double kMeasureFlops = 6e8;  // past start-up costs, short enough to try ten
// oneDNN must be faster by this much than our own kernel, whose bits do not depend on a choice.
constexpr double kClearly = 0.9;
constexpr int64_t kMostBytes = 16 << 20;  // of remembered choices
constexpr const char* kEntryNames[] = {"sgemm", "matmul", "packed", "bf16"};
std::atomic<bool> measuring{true};
std::atomic<bool> may_time{true};
std::mutex mutex;

class Memory {
 public:
  static Memory& get() {
    static Memory memory;
    return memory;
  }

  GemmChoice find_or_measure(const GemmShape& shape) {
    if (const auto used = used_.find(shape); used != used_.end()) return used->second;
    const auto found = choices_.find(shape);
    if (found != choices_.end()) return used_[shape] = found->second;
    if (!may_time) return used_[shape] = {};
    return used_[shape] = remember(shape, measure(shape));
  }
  std::string used() const { return text_of(used_); }
  void append_library_choices(std::vector<std::pair<GemmShape, GemmChoice>>* list) const {
    for (const auto& use : used_)
      if (!use.second.own()) list->push_back(use);
  }
  void pin(const std::string& text) { read(text, &used_); }

 private:
  using Choices = std::map<GemmShape, GemmChoice>;

  Memory() : path_(cache_folder() / ("gemm3-" + machine_fingerprint() + ".txt")) {
    std::string text;
    try {
      if (fs::exists(path_)) text = read_file(path_, kMostBytes);
    } catch (const std::exception&) {
      // A cache that cannot be read costs measuring again, nothing else.
    }
    read(text, &choices_);
  }

  static void read(const std::string& text, Choices* choices) {
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      int ta = 0, tb = 0, entry = 0;
      long long m = 0, n = 0, k = 0, tm = 0, tn = 0;
      // A damaged line is skipped: the shape is then measured again.
      if (std::sscanf(line.c_str(), "%lld %lld %lld %d %d : %d %lld %lld", &m, &n, &k, &ta, &tb,
                      &entry, &tm, &tn) != 8)
        continue;
      if (tm < 1 || tn < 1 || tm > kMaxTile || tn > kMaxTile || entry < 0 || entry > 2) continue;
      (*choices)[{m, n, k, ta != 0, tb != 0}] = {static_cast<GemmEntry>(entry), {tm, tn}};
    }
  }

  static std::string text_of(const Choices& choices) {
    std::string text;
    for (const auto& [s, c] : choices)
      text += fmt::format("{} {} {} {} {} : {} {} {}\n", s.m, s.n, s.k, int{s.ta}, int{s.tb},
                          static_cast<int>(c.entry), c.tile.m, c.tile.n);
    return text;
  }

  // Beside what other processes have remembered since; who was first counts, for all of them.
  GemmChoice remember(const GemmShape& shape, const GemmChoice& choice) {
    try {
      change_shared_file(path_, kMostBytes, [&](const std::string& text) {
        read(text, &choices_);
        choices_.try_emplace(shape, choice);
        return text_of(choices_);
      });
    } catch (const Error&) {
      // A cache that cannot be written costs the next start a second, nothing else.
    }
    return choices_.try_emplace(shape, choice).first->second;
  }

  static GemmChoice measure(const GemmShape& full) {
    // Tiles are independent, and long sums are made in blocks: a slice of a large product ranks
    // them as the whole would.
    GemmShape s = full;
    auto flops = [&] {
      return 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    };
    while (flops() > kMeasureFlops && s.k >= 2048) s.k /= 2;
    while (flops() > kMeasureFlops && std::max(s.m, s.n) > 2048) (s.m > s.n ? s.m : s.n) /= 2;
    std::vector<float> a(static_cast<size_t>(s.m * s.k), 0.5f),
        b(static_cast<size_t>(s.k * s.n), 0.25f), c(static_cast<size_t>(s.m * s.n));
    const int repeats = flops() < 2e7 ? 12 : 3;
    auto time = [&](const GemmChoice& candidate) {
      const int64_t start = now_ns();
      gemm(s, candidate, a.data(), b.data(), c.data());
      return seconds_since(start);
    };
    // Stops as soon as it is plain that it does not come near `wanted`.
    auto shortest_of = [&](const GemmChoice& candidate, double wanted) {
      double shortest = 1e30;
      for (int i = 0; i < repeats && !(shortest > 1.15 * wanted && i > 0); ++i)
        shortest = std::min(shortest, time(candidate));
      return shortest;
    };
    time({});  // warms caches and is not counted
    const double enough = kClearly * shortest_of({}, 1e30);
    GemmChoice best;
    double best_time = 1e30;
    for (const GemmEntry entry : {GemmEntry::sgemm, GemmEntry::matmul}) {
      for (const GemmTiling& tile : kTilings) {
        if ((tile.m >= 2 * s.m && tile.m > 64) || (tile.n >= 2 * s.n && tile.n > 192)) continue;
        // The primitive is tried at the best tiling only: its order among tilings follows sgemm's.
        if (entry == GemmEntry::matmul && (tile.m != best.tile.m || tile.n != best.tile.n))
          continue;
        const GemmChoice candidate{entry, tile};
        // The first use makes code; of many tilings of a long product it is made once.
        if (entry == GemmEntry::matmul || best_time > 1e29 || repeats > 3) time(candidate);
        const double shortest = shortest_of(candidate, std::min(enough, best_time));
        if (shortest < best_time * 0.98) {
          best_time = shortest;
          best = candidate;
        }
      }
    }
    if (best_time > enough) return {};
    // The best of many is a lucky one: it must show it again, in turns with our own kernel.
    std::vector<double> theirs, ours;
    for (int i = 0; i < 2 * repeats + 1; ++i) {
      ours.push_back(time({}));
      theirs.push_back(time(best));
    }
    return median(theirs) < kClearly * median(ours) ? best : GemmChoice{};
  }

  fs::path path_;
  Choices choices_;  // remembered on disk
  Choices used_;     // by this process; pinned ones among them
};

void check_dnnl(dnnl_status_t status, const char* what) {
  MR_CHECK(status == dnnl_success, "oneDNN {}: status {}", what, static_cast<int>(status));
}

// A matmul primitive for one tile shape, with a set of memory handles per thread so that nothing is
// allocated when it runs.
struct TileKey {
  int64_t m, n, k, lda, ldb, ldc;
  bool ta, tb, accumulate;
  friend auto operator<=>(const TileKey&, const TileKey&) = default;
};

class MatmulPrimitive {
 public:
  explicit MatmulPrimitive(const TileKey& key) {
    check_dnnl(dnnl_engine_create(&engine_, dnnl_cpu, 0), "engine");
    dnnl_dims_t a_dims{key.m, key.k}, b_dims{key.k, key.n}, c_dims{key.m, key.n};
    dnnl_dims_t a_strides{key.ta ? 1 : key.lda, key.ta ? key.lda : 1},
        b_strides{key.tb ? 1 : key.ldb, key.tb ? key.ldb : 1}, c_strides{key.ldc, 1};
    make(a_dims, a_strides, b_dims, b_strides, c_dims, c_strides, key.accumulate);
  }
  void run(const float* a, const float* b, float* c) {
    PerThread& t = threads_[static_cast<size_t>(thread_index())];
    if (!t.stream) set_up(t);  // more threads than there were when it was made
    dnnl_memory_set_data_handle(t.a, const_cast<float*>(a));
    dnnl_memory_set_data_handle(t.b, const_cast<float*>(b));
    dnnl_memory_set_data_handle(t.c, c);
    const dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, t.a},
                                     {DNNL_ARG_WEIGHTS, t.b},
                                     {DNNL_ARG_DST, t.c},
                                     {DNNL_ARG_SCRATCHPAD, t.scratch}};
    check_dnnl(dnnl_primitive_execute(primitive_, t.stream, 4, args), "execute");
  }

 private:
  struct PerThread {
    dnnl_memory_t a = nullptr, b = nullptr, c = nullptr, scratch = nullptr;
    dnnl_stream_t stream = nullptr;
  };

  void set_up(PerThread& t) {
    create_(&t.a, 0);
    create_(&t.b, 1);
    create_(&t.c, 2);
    create_(&t.scratch, 3);
    check_dnnl(dnnl_stream_create(&t.stream, engine_, dnnl_stream_default_flags), "stream");
  }

  void make(dnnl_dims_t a_dims, dnnl_dims_t a_strides, dnnl_dims_t b_dims, dnnl_dims_t b_strides,
            dnnl_dims_t c_dims, dnnl_dims_t c_strides, bool accumulate) {
    dnnl_primitive_attr_t attr = nullptr;
    dnnl_post_ops_t post = nullptr;
    check_dnnl(dnnl_primitive_attr_create(&attr), "attr");
    check_dnnl(dnnl_post_ops_create(&post), "post ops");
    // The library's own scratchpad belongs to the primitive, which several threads run at once:
    // some of its kernels (AVX-512) would write over each other's.
    check_dnnl(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
               "scratchpad");
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t a_md, b_md, c_md;
    check_dnnl(dnnl_memory_desc_create_with_strides(&a_md, 2, a_dims, dnnl_f32, a_strides), "A");
    check_dnnl(dnnl_memory_desc_create_with_strides(&b_md, 2, b_dims, dnnl_f32, b_strides), "B");
    check_dnnl(dnnl_memory_desc_create_with_strides(&c_md, 2, c_dims, dnnl_f32, c_strides), "C");
    if (accumulate) check_dnnl(dnnl_post_ops_append_sum(post, 1.0f, 0, dnnl_f32), "sum");
    check_dnnl(dnnl_primitive_attr_set_post_ops(attr, post), "post ops");
    dnnl_primitive_desc_t pd;
    check_dnnl(dnnl_matmul_primitive_desc_create(&pd, engine_, a_md, b_md, nullptr, c_md, attr),
               "matmul");
    const const_dnnl_memory_desc_t scratch =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    dnnl_memory_desc_t scratch_md;
    check_dnnl(dnnl_memory_desc_clone(&scratch_md, scratch), "scratchpad");
    create_ = [this, descs = std::array{a_md, b_md, c_md, scratch_md}](dnnl_memory_t* m, size_t i) {
      check_dnnl(dnnl_memory_create(m, descs[i], engine_,
                                    i == 3 ? DNNL_MEMORY_ALLOCATE : DNNL_MEMORY_NONE),
                 "memory");
    };
#else
    dnnl_memory_desc_t a_md, b_md, c_md;
    check_dnnl(dnnl_memory_desc_init_by_strides(&a_md, 2, a_dims, dnnl_f32, a_strides), "A");
    check_dnnl(dnnl_memory_desc_init_by_strides(&b_md, 2, b_dims, dnnl_f32, b_strides), "B");
    check_dnnl(dnnl_memory_desc_init_by_strides(&c_md, 2, c_dims, dnnl_f32, c_strides), "C");
    if (accumulate) check_dnnl(dnnl_post_ops_append_sum(post, 1.0f), "sum");
    check_dnnl(dnnl_primitive_attr_set_post_ops(attr, post), "post ops");
    dnnl_matmul_desc_t desc;
    check_dnnl(dnnl_matmul_desc_init(&desc, &a_md, &b_md, nullptr, &c_md), "matmul");
    dnnl_primitive_desc_t pd;
    check_dnnl(dnnl_primitive_desc_create(&pd, &desc, attr, engine_, nullptr), "matmul");
    const dnnl_memory_desc_t scratch_md =
        *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    create_ = [this, descs = std::array{a_md, b_md, c_md, scratch_md}](dnnl_memory_t* m, size_t i) {
      check_dnnl(dnnl_memory_create(m, &descs[i], engine_,
                                    i == 3 ? DNNL_MEMORY_ALLOCATE : DNNL_MEMORY_NONE),
                 "memory");
    };
#endif
    check_dnnl(dnnl_primitive_create(&primitive_, pd), "primitive");
    threads_.resize(static_cast<size_t>(kMaxThreads));
    for (size_t i = 0; i < static_cast<size_t>(threads()); ++i) set_up(threads_[i]);
    dnnl_primitive_desc_destroy(pd);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
  }

  dnnl_engine_t engine_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
  std::function<void(dnnl_memory_t*, size_t)> create_;  // a, b, c, scratchpad
  std::vector<PerThread> threads_;
};

// Primitives live as long as the program: a model has a few dozen tile shapes.
MatmulPrimitive& primitive_for(const TileKey& key) {
  static std::map<TileKey, MatmulPrimitive>* primitives = new std::map<TileKey, MatmulPrimitive>;
  static std::mutex primitives_mutex;
  std::lock_guard lock(primitives_mutex);
  return primitives->try_emplace(key, key).first->second;
}

}  // namespace

std::string GemmChoice::str() const {
  const char* name = kEntryNames[static_cast<size_t>(entry)];
  return own() ? name : fmt::format("{} {}x{}", name, tile.m, tile.n);
}

void gemm_set_measuring(bool on) { measuring = on; }
bool gemm_set_timing(bool on) { return may_time.exchange(on); }
bool gemm_measuring() { return measuring; }

std::string gemm_choices() {
  std::lock_guard lock(mutex);
  return Memory::get().used();
}

void gemm_pin_choices(const std::string& text) {
  std::lock_guard lock(mutex);
  Memory::get().pin(text);
}

GemmChoice gemm_choice(const GemmShape& shape) {
  if (!measuring || shape.m == 0 || shape.n == 0 || shape.k == 0) return {};
  std::lock_guard lock(mutex);
  return Memory::get().find_or_measure(shape);
}

void gemm_tile(const GemmShape& s, const GemmChoice& choice, const float* a, const float* b,
               float* c, float beta, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
               const BlockDone& done) {
  // oneDNN must not start a team of its own, which would split sums among its threads. OpenMP keeps
  // the number per calling thread, and any thread may be the caller.
  thread_local const bool alone = (omp_set_num_threads(1), true);
  (void)alone;
  const int64_t m = i1 - i0, n = j1 - j0, lda = s.ta ? s.m : s.k, ldb = s.tb ? s.k : s.n;
  a += s.ta ? i0 : i0 * s.k;
  b += s.tb ? j0 * s.k : j0;
  c += i0 * s.n + j0;
  if (choice.own() && s.k > 0) {
    static const auto floats = best_isa() == Isa::avx512 ? avx512::multiply : avx2::multiply;
    BlockDone part = done;
    part.i0 = i0;
    part.j0 = j0;
    const auto multiply = choice.entry == GemmEntry::bf16 ? avx512_bf16::multiply : floats;
    return multiply({m, n, s.k, a, lda, s.ta, b, ldb, s.tb, c, s.n, beta != 0, part});
  }
  if (s.k == 0) {
    for (int64_t i = 0; beta == 0 && i < m; ++i) std::fill_n(c + i * s.n, n, 0.0f);
  } else if (choice.entry == GemmEntry::matmul) {
    primitive_for({m, n, s.k, lda, ldb, s.n, s.ta, s.tb, beta != 0}).run(a, b, c);
  } else {
    check_dnnl(dnnl_sgemm(s.ta ? 'T' : 'N', s.tb ? 'T' : 'N', m, n, s.k, 1.0f, a, lda, b, ldb, beta,
                          c, s.n),
               "sgemm");
  }
  if (done.call) done.call(done.context, {i0, i1, j0, j1, c, s.n});
}

namespace {

// About equal tiles: the cheapest by a model of what a task costs, in multiplications.
GemmTiling cheapest_tiling(const GemmShape& s, int64_t workers, bool bf16) {
  // Copying a number out of rows or columns; where vectors are wider, multiplying is cheaper, and
  // two at a time cheaper again.
  const bool wide = best_isa() == Isa::avx512;
  const double left = bf16   ? (s.ta ? 68 : 48)
                      : wide ? (s.ta ? 34 : 16)
                             : (s.ta ? 6 : 2),
               right = bf16   ? (s.tb ? 84 : 40)
                       : wide ? (s.tb ? 42 : 20)
                              : (s.tb ? 10 : 5);
  // Handing out a task; a row of a tile with what is done to it afterwards; a number of B that is
  // read again for every block of rows.
  constexpr double kTask = 1e5, kRow = 4e3, kAgain = 4;
  constexpr int64_t kColumnUnit = 32;
  const int64_t least_across = pieces(s.n, kPackedColumns),
                most_tasks = std::max(least_across, 16 * workers);
  GemmTiling best;
  double best_cost = 1e300;
  auto consider = [&](int64_t rows, int64_t columns) {
    const int64_t tasks = pieces(s.m, rows) * pieces(s.n, columns);
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns),
               blocks = static_cast<double>(pieces(rows, kPackedRows));
    const double task =
        (r * c + left * r + (right + kAgain * blocks) * c) * static_cast<double>(s.k) + r * kRow +
        kTask;
    // The last round leaves threads idle, and they are not equally fast: the slowest of many less
    // so.
    const double uneven = workers == 1   ? 0
                          : workers <= 4 ? 0.3
                                         : 0.8,
                 rounds = static_cast<double>(pieces(tasks, workers)) + uneven;
    if (rounds * task < best_cost) {
      best_cost = rounds * task;
      best = {rows, columns};
    }
  };
  for (int64_t across = least_across; across <= std::min(most_tasks, pieces(s.n, kColumnUnit));
       ++across)
    for (int64_t down = 1; down * across <= most_tasks && down <= s.m; ++down)
      for (const int64_t unit : {kPackedRows, kPackedBand})
        consider(std::min(s.m, piece_size(s.m, down, unit)), piece_size(s.n, across, kColumnUnit));
  return best;
}

}  // namespace

GemmTiling packed_tiling(const GemmShape& s, int64_t workers, bool bf16) {
  if (s.m == 0 || s.n == 0) return {};
  static thread_local std::map<std::tuple<GemmShape, int64_t, bool>, GemmTiling> known;
  const auto [at, fresh] = known.try_emplace({s, workers, bf16});
  if (fresh) at->second = cheapest_tiling(s, workers, bf16);
  return at->second;
}

void gemm_warm_up(bool bf16) {
  constexpr int64_t kSize = 384;
  // oneDNN makes code for a shape when it first meets it, so a tile of every choice that names it.
  std::vector<std::pair<GemmShape, GemmChoice>> chosen;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const GemmShape shape{kSize, kSize, kSize, ta, tb};
      chosen.push_back({shape, {}});
      if (bf16) chosen.push_back({shape, {GemmEntry::bf16, {}}});
    }
  {
    std::lock_guard lock(mutex);
    Memory::get().append_library_choices(&chosen);
  }
  int64_t a_most = 0, b_most = 0, c_most = 0;
  for (const auto& [s, choice] : chosen) {
    a_most = std::max(a_most, s.m * s.k);
    b_most = std::max(b_most, s.k * s.n);
    c_most = std::max(c_most, s.m * s.n);
  }
  // Only what the tiles touch becomes memory.
  const auto buffer = [](int64_t count) {
    return std::unique_ptr<float, void (*)(void*)>(
        static_cast<float*>(std::calloc(static_cast<size_t>(count), sizeof(float))), std::free);
  };
  const auto a = buffer(a_most), b = buffer(b_most), c = buffer(threads() * c_most);
  if (!a || !b || !c) return;  // a prediction is then low; the arena will say what is wrong
  std::atomic<int> arrived = 0;
  const int all = parallel_width();
  parallel_tasks(all, [&](int64_t task) {
    ++arrived;
    while (arrived < all) std::this_thread::yield();  // so that every thread has one
    for (const auto& [s, choice] : chosen) {
      const bool own = choice.own();
      gemm_tile(s, choice, a.get(), b.get(), c.get() + task * c_most, 0, 0,
                own ? s.m : std::min(s.m, choice.tile.m), 0,
                own ? s.n : std::min(s.n, choice.tile.n));
    }
  });
}

double measure_gemm_ceiling(bool bf16) {
  double best = 0;
  for (const int64_t size : {768, 1536}) {
    const GemmShape s{size, size, size};
    std::vector<float> a(static_cast<size_t>(size * size), 0.5f), b(a), c(a);
    auto try_out = [&](const auto& product) {
      for (int i = 0; i < 4; ++i) {
        const int64_t start = now_ns();
        product();
        best = std::max(best, 2.0 * static_cast<double>(size * size * size) / seconds_since(start));
      }
    };
    if (bf16) {
      for (int i = 0; i < 8; ++i)  // nobody else is tried, and others use the machine
        try_out([&] { gemm(s, {GemmEntry::bf16, {}}, a.data(), b.data(), c.data()); });
      continue;
    }
    try_out([&] { gemm(s, {}, a.data(), b.data(), c.data()); });
    for (const GemmTiling& tile : kTilings)
      try_out([&] { gemm(s, {GemmEntry::sgemm, tile}, a.data(), b.data(), c.data()); });
    // oneDNN's own threading on the whole product: the ceiling must not be ours alone.
    omp_set_num_threads(threads());
    try_out([&] {
      check_dnnl(dnnl_sgemm('N', 'N', size, size, size, 1.0f, a.data(), size, b.data(), size, 0.0f,
                            c.data(), size),
                 "sgemm");
    });
    omp_set_num_threads(1);
  }
  return best;
}

}  // namespace millrace::cpu
