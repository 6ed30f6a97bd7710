// Element-wise expressions over flat runs of kTile elements. A broadcast operand whose run is cut
// by its period is laid out in a tile of its own first.
#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/tile_program.h"
#include "ops/elementwise.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr size_t kMaxOperands = 16, kMaxResults = 16;

struct Program {
  Expression expression;
  std::vector<OperandLayout> layouts;
};

std::string decline(const OpSite& site) {
  const Expression e = Expression::parse(site.attrs.text("expr"), static_cast<int>(site.in.size()));
  if (e.code.size() + e.results.size() > kMaxTemporaries || site.in.size() > kMaxOperands ||
      site.out.size() > kMaxResults)
    return "expression too large";
  return "";
}

std::shared_ptr<const void> prepare(const OpSite& site) {
  auto program = std::make_shared<Program>();
  program->expression =
      Expression::parse(site.attrs.text("expr"), static_cast<int>(site.in.size()));
  program->layouts.resize(site.in.size());
  for (size_t i = 0; i < site.in.size(); ++i)
    operand_layout(site.in[i], site.out[0].shape, program->layouts[i]);
  return program;
}

void run_range(const Call& c, const Program& program, int64_t begin, int64_t end) {
  alignas(64) static thread_local float laid_out[kMaxOperands][kTile];
  const size_t operands = program.layouts.size();
  Source sources[kMaxOperands];
  float* results[kMaxResults];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t n = std::min(kTile, end - at);
    for (size_t i = 0; i < operands; ++i) {
      const OperandLayout& l = program.layouts[i];
      const float* p = c.in(i);
      switch (l.kind) {
        case Broadcast::full:
          sources[i].run = p + at;
          break;
        case Broadcast::scalar:
          sources[i] = {nullptr, p[0], nullptr};
          break;
        case Broadcast::random_key:
          sources[i].key = c.ids(i);
          break;
        case Broadcast::suffix: {
          const int64_t offset = at % l.period;
          if (offset + n <= l.period) {
            sources[i].run = p + offset;
            break;
          }
          for (int64_t done = 0, from = offset; done < n; from = 0) {
            const int64_t take = std::min(n - done, l.period - from);
            std::copy_n(p + from, take, laid_out[i] + done);
            done += take;
          }
          sources[i].run = laid_out[i];
          break;
        }
        case Broadcast::prefix: {
          const int64_t row = at / l.period;
          if ((at + n - 1) / l.period == row) {
            sources[i] = {nullptr, p[row], nullptr};
            break;
          }
          for (int64_t k = 0; k < n; ++k) laid_out[i][k] = p[(at + k) / l.period];
          sources[i] = {laid_out[i], 0, nullptr};
          break;
        }
      }
    }
    for (size_t r = 0; r < c.site.out.size(); ++r) results[r] = c.out(r) + at;
    run_tile(program.expression, sources, results, at, n);
  }
}

void run(const Call& c) {
  const auto& program = *static_cast<const Program*>(c.prepared);
  parallel_ranges(c.out_shape(0).numel(), 16 * kTile,
                  [&](int64_t begin, int64_t end) { run_range(c, program, begin, end); });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(elementwise, {.name = "tiles", .decline = decline, .prepare = prepare, .run = run})
