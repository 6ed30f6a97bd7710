// Matrix products: a few rows by loops of our own that stream the matrix (cpu/gemv.h), everything
// else through cpu/gemm.h. The epilogue runs on each tile while it is in cache.
#include "cpu/gemm.h"
#include "cpu/gemv.h"
#include "cpu/kernel.h"
#include "cpu/tile_program.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr size_t kMaxOperands = 16, kMaxResults = 8;

struct Prepared {
  GemmShape shape;
  GemmChoice choice;
  bool has_epilogue = false;
  Expression epilogue;
  std::vector<OperandLayout> layouts;  // of operands a1, a2, …
};

GemmShape gemm_shape(const OpSite& site) {
  const MatmulSizes s = matmul_sizes(site.attrs, site.in[0].shape, site.in[1].shape);
  return {s.m, s.n, s.k, s.ta, s.tb};
}

GemmChoice choice_of(const OpSite& site) {
  if (site.attrs.text("math") == "bf16") return {GemmEntry::bf16, {}};
  return gemm_choice(gemm_shape(site));
}

// What both kernels ask of an epilogue.
std::string decline(const OpSite& site) {
  if (!site.attrs.find("expr")) return "";
  if (site.attrs.integer("batched", 0)) return "batched product with an epilogue";
  const Expression e =
      Expression::parse(site.attrs.text("expr"), static_cast<int>(site.in.size()) - 1);
  if (e.code.size() + e.results.size() > kMaxTemporaries || site.in.size() > kMaxOperands ||
      site.out.size() > kMaxResults)
    return "epilogue too large";
  for (size_t i = 2; i < site.in.size(); ++i) {
    OperandLayout l;
    operand_layout(site.in[i], site.out[0].shape, l);
    if (l.kind == Broadcast::prefix ||
        (l.kind == Broadcast::suffix && l.period != site.out[0].shape.last()))
      return "epilogue operand is not a bias, a matrix or a number";
  }
  return "";
}

std::string gemv_decline(const OpSite& site) {
  const GemmShape s = gemm_shape(site);
  if (site.attrs.integer("batched", 0)) return "batched product";
  if (s.ta || s.m > kGemvRows) return fmt::format("{} {} of A", s.m, s.ta ? "columns" : "rows");
  if (s.m == 0 || s.n == 0 || s.k == 0) return "nothing to add up";
  return decline(site);
}

std::shared_ptr<Prepared> prepare_epilogue(const OpSite& site) {
  auto p = std::make_shared<Prepared>();
  p->shape = gemm_shape(site);
  p->has_epilogue = site.attrs.find("expr") != nullptr;
  if (!p->has_epilogue) return p;
  p->epilogue = Expression::parse(site.attrs.text("expr"), static_cast<int>(site.in.size()) - 1);
  p->layouts.resize(site.in.size() - 2);
  for (size_t i = 2; i < site.in.size(); ++i)
    operand_layout(site.in[i], site.out[0].shape, p->layouts[i - 2]);
  return p;
}

std::shared_ptr<const void> gemv_prepare(const OpSite& site) { return prepare_epilogue(site); }

std::shared_ptr<const void> prepare(const OpSite& site) {
  auto p = prepare_epilogue(site);
  p->choice = choice_of(site);
  return p;
}

void run_epilogue(const Call& c, const Prepared& p, const ProductBlock& block) {
  Source sources[kMaxOperands];  // cleared once for all rows
  float* results[kMaxResults];
  const int64_t n = p.shape.n, width = block.j1 - block.j0;
  for (int64_t i = block.i0; i < block.i1; ++i) {
    // The product is in cache, the matrices are not, and a block's rows lie far apart.
    const int64_t ahead = std::min(i + 2, block.i1 - 1) * n + block.j0;
    for (size_t k = 0; k < p.layouts.size(); ++k)
      if (p.layouts[k].kind == Broadcast::full) prefetch_row(c.in(k + 2) + ahead, width);
    for (size_t r = 0; r < c.site.out.size(); ++r)
      for (int64_t j = 0; j < width; j += 16) __builtin_prefetch(c.out(r) + ahead + j, 1);
    for (int64_t j = block.j0; j < block.j1; j += kTile) {
      const int64_t at = i * n + j;
      sources[0].run = block.row(i) + j - block.j0;
      for (size_t k = 0; k < p.layouts.size(); ++k) {
        const float* operand = c.in(k + 2);
        switch (p.layouts[k].kind) {
          case Broadcast::full:
            sources[k + 1].run = operand + at;
            break;
          case Broadcast::suffix:
            sources[k + 1].run = operand + j;
            break;
          case Broadcast::random_key:
            sources[k + 1].key = c.ids(k + 2);
            break;
          default:
            sources[k + 1].number = operand[0];
            break;
        }
      }
      for (size_t r = 0; r < c.site.out.size(); ++r) results[r] = c.out(r) + at;
      run_tile(p.epilogue, sources, results, at, std::min(kTile, block.j1 - j));
    }
  }
}

void run(const Call& c) {
  const auto& p = *static_cast<const Prepared*>(c.prepared);
  const GemmShape& s = p.shape;
  if (c.attrs().integer("batched", 0)) {
    parallel_tasks(c.in_shape(0)[0], [&](int64_t q) {
      gemm(s, p.choice, c.in(0) + q * s.m * s.k, c.in(1) + q * s.k * s.n, c.out(0) + q * s.m * s.n);
    });
  } else if (p.has_epilogue) {
    gemm(s, p.choice, c.in(0), c.in(1), c.out(0), 0,
         [&](const ProductBlock& block) { run_epilogue(c, p, block); });
  } else {
    gemm(s, p.choice, c.in(0), c.in(1), c.out(0));
  }
}

int64_t gemv_workspace(const OpSite& site) {
  const GemmShape s = gemm_shape(site);
  return s.tb ? 0 : gemv_slabs(s.k) * s.m * s.n * static_cast<int64_t>(sizeof(float));
}

void gemv_run(const Call& c) {
  const auto& p = *static_cast<const Prepared*>(c.prepared);
  const GemmShape& s = p.shape;
  const float *a = c.in(0), *b = c.in(1);
  auto finish = [&](int64_t j0, int64_t j1) {
    if (p.has_epilogue) run_epilogue(c, p, {0, s.m, j0, j1, c.out(0) + j0, s.n});
  };
  with_count<kGemvRows>(s.m, [&](auto rows) {
    constexpr int M = decltype(rows)::value;
    if (s.tb) {
      parallel_ranges(s.n, gemv_task_rows(s.k), [&](int64_t j0, int64_t j1) {
        gemv_rows<M>(s.n, s.k, a, b, c.out(0), j0, j1);
        finish(j0, j1);
      });
      return;
    }
    float* shares = c.scratch();
    const int64_t slabs = gemv_slabs(s.k);
    parallel_tasks(slabs, [&](int64_t slab) {
      gemv_slab<M>(s.n, s.k, a, b, slab * kSlabRows, std::min(s.k, (slab + 1) * kSlabRows),
                   shares + slab * M * s.n);
    });
    parallel_ranges(s.n, kTile, [&](int64_t j0, int64_t j1) {
      gemv_add_shares(M, s.n, slabs, shares, c.out(0), j0, j1);
      finish(j0, j1);
    });
  });
}

std::string detail(const OpSite& site) { return choice_of(site).str(); }

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(
    matmul,
    {.name = "gemv",
     .decline = gemv_decline,
     .workspace_bytes = gemv_workspace,
     .prepare = gemv_prepare,
     .run = gemv_run},
    {.name = "gemm", .decline = decline, .prepare = prepare, .run = run, .detail = detail})
