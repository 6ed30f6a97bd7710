// Matrix products by cuBLASLt (cuda/gemm.h). The library takes as much of an epilogue as it can: a
// factor, a bias, a matrix to add, GELU and its derivative, ReLU. What is left runs as an
// element-wise program over the result.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

#include "cuda/context.h"
#include "cuda/gemm.h"
#include "cuda/kernel.h"
#include "graph/expression.h"
#include "ops/elementwise.h"
#include "ops/elementwise_cuda.h"
#include "ops/matmul.h"

namespace millrace::cuda {
namespace {

constexpr int kNone = -1;

// A node, its epilogue as an expression of the product (operand 0) and inputs 2, 3, … (1, 2, …).
struct Product {
  explicit Product(const OpSite& from) : site(from) {
    sizes = matmul_sizes(site.attrs, site.in[0].shape, site.in[1].shape);
    const int operands = static_cast<int>(site.in.size()) - 1;
    epilogue = Expression::parse(site.attrs.text("expr", "->a0"), operands);
    layouts.resize(static_cast<size_t>(operands));
    for (size_t i = 1; i < layouts.size(); ++i)
      operand_layout(site.in[i + 1], site.out[0].shape, layouts[i]);
  }
  const TensorType& operand(int i) const { return site.in[static_cast<size_t>(i) + 1]; }
  bool is_bias(Term t) const {
    const OperandLayout* layout = layout_of(t);
    return layout && layout->kind == Broadcast::suffix && layout->period == sizes.n;
  }
  bool is_full(Term t) const {
    const OperandLayout* layout = layout_of(t);
    return layout && layout->kind == Broadcast::full;
  }
  // Null when it is no instruction.
  const Instruction* instruction(Term t) const {
    return t.is_operand() ? nullptr : &epilogue.code[static_cast<size_t>(t.index())];
  }

  OpSite site;
  MatmulSizes sizes;
  Expression epilogue;
  std::vector<OperandLayout> layouts;  // of operands 1, 2, …

 private:
  const OperandLayout* layout_of(Term t) const {
    return t.is_operand() && t.index() > 0 ? &layouts[static_cast<size_t>(t.index())] : nullptr;
  }
};

// A part of the epilogue that the library's form has room for. Numbers are operands.
struct Part {
  Term value = Term::operand(0);  // what the library's result is
  Term before;                    // what goes into the activation
  double alpha = 1;
  int bias = kNone, added = kNone;
  int slope_at = kNone;  // gelu_grad: where the derivative is taken
  Activation activation = Activation::none;
  bool is_product() const { return value == Term::operand(0); }
};

// `part` and all larger ones.
void find_parts(const Product& p, const Part& part, std::vector<Part>& parts) {
  parts.push_back(part);
  if (part.activation != Activation::none) return;
  for (size_t i = 0; i < p.epilogue.code.size(); ++i) {
    const Instruction& c = p.epilogue.code[i];
    Part next = part;
    next.value = Term::result(static_cast<int>(i));
    if (function_arity(c.function) == 1 && c.a == part.value && part.added == kNone) {
      next.before = part.value;
      if (c.function == Function::relu)
        next.activation = Activation::relu;
      else if (c.function == Function::gelu_tanh)
        next.activation = Activation::gelu;
      else
        continue;
    } else if (function_arity(c.function) == 2 && (c.a == part.value) != (c.b == part.value)) {
      const Term other = c.a == part.value ? c.b : c.a;
      const Instruction* of = p.instruction(other);
      const bool only_scaled = part.bias == kNone && part.added == kNone;
      if (c.function == Function::add && part.bias == kNone && p.is_bias(other)) {
        next.bias = other.index();
      } else if (c.function == Function::add && part.added == kNone && p.is_full(other)) {
        next.added = other.index();
      } else if (c.function == Function::mul && only_scaled && of &&
                 of->function == Function::constant) {
        next.alpha *= of->number;
      } else if (c.function == Function::mul && only_scaled && of &&
                 of->function == Function::gelu_tanh_grad && p.is_full(of->a)) {
        next.slope_at = of->a.index();
        next.activation = Activation::gelu_grad;
      } else {
        continue;
      }
    } else {
      continue;
    }
    find_parts(p, next, parts);
  }
}

// How a node is computed: a product with its part of the epilogue, then the rest of it.
struct Route {
  Part part;
  GemmSpec gemm;
  size_t product = 0;  // the output it is written to
  bool apart = false;  // it is written to the workspace instead
  int kept = kNone;    // the output that gets what goes into the activation
  Expression rest;
  std::vector<int> rest_in;      // operands of the rest: kProduct, kKept or an operand of the node
  std::vector<size_t> rest_out;  // outputs that it writes; empty: there is no rest

  static constexpr int kProduct = 0, kKept = -1;
  bool activates() const { return part.activation != Activation::none; }
  size_t steps() const {
    return static_cast<size_t>(
        std::count_if(rest.code.begin(), rest.code.end(),
                      [](const Instruction& c) { return c.function != Function::constant; }));
  }
  // What runs after the library: nothing is best.
  size_t left() const { return rest_out.empty() ? 0 : 1 + steps(); }
};

// The expression with the library's results put in: operand 0 is what it computed, one more operand
// what it kept. False when something else is needed of the product.
bool set_rest(const Product& p, Route& r) {
  const Expression& e = p.epilogue;
  const Term done = Term::operand(0), kept = Term::operand(e.operands),
             lost = Term::operand(e.operands + 1);
  const bool keeps = r.part.activation == Activation::gelu_kept;
  ExpressionBuilder b(e.operands + 2);
  std::vector<Term> made;
  auto place = [&](Term t) {
    if (t == r.part.value) return done;
    if (keeps && t == r.part.before) return kept;
    if (!t.is_operand()) return made[static_cast<size_t>(t.index())];
    return t.index() == 0 ? lost : t;
  };
  for (size_t i = 0; i < e.code.size(); ++i) {
    const Instruction& c = e.code[i];
    if (c.function == Function::constant)
      made.push_back(b.constant(c.number));
    else if (c.function == Function::keep)
      made.push_back(b.keep(place(c.a), c.number, c.stream));
    else
      made.push_back(
          b.apply(c.function, place(c.a), function_arity(c.function) == 2 ? place(c.b) : Term{}));
  }
  std::vector<Term> results;
  for (const Term t : e.results) results.push_back(place(t));

  // Each result of the library goes where it belongs; one that is only a step on the way goes where
  // the rest will write over it.
  auto home_of = [&](Term t) {
    return static_cast<size_t>(std::find(results.begin(), results.end(), t) - results.begin());
  };
  if (keeps) {
    if (home_of(kept) == results.size()) return false;
    r.kept = static_cast<int>(home_of(kept));
  }
  r.product = home_of(done);
  for (size_t i = 0; r.product == results.size() && i < results.size(); ++i)
    if (static_cast<int>(i) != r.kept) r.product = i;
  if (r.product == results.size()) return false;

  std::vector<Term> wanted;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool in_place = i == r.product && results[i] == done && !r.apart;
    if (in_place || static_cast<int>(i) == r.kept) continue;
    wanted.push_back(results[i]);
    r.rest_out.push_back(i);
  }
  if (wanted.empty()) return true;
  std::vector<int> same_as, operand_of;
  for (int i = 0; i < e.operands + 2; ++i) same_as.push_back(i);
  r.rest = compact_operands(b.finish(wanted), same_as, operand_of);
  if (operand_of[static_cast<size_t>(lost.index())] >= 0) return false;
  r.rest_in.resize(static_cast<size_t>(r.rest.operands));
  for (int i = 0; i <= e.operands; ++i)
    if (const int to = operand_of[static_cast<size_t>(i)]; to >= 0)
      r.rest_in[static_cast<size_t>(to)] = i == kept.index() ? Route::kKept : i;
  return true;
}

// The route on which the library does `part`, where its rules allow that.
std::optional<Route> route_of(const Product& p, const Part& part) {
  const MatmulSizes& s = p.sizes;
  const DType in = p.site.in[0].dtype;
  Route r;
  r.part = part;
  // Factors of f32 make a product of f32 only: halves are made of it afterwards.
  r.apart = in == DType::f32 && std::any_of(p.site.out.begin(), p.site.out.end(),
                                            [](const TensorType& t) { return is_half(t.dtype); });
  if (!set_rest(p, r)) return {};
  const DType out = r.apart ? DType::f32 : p.site.out[r.product].dtype;
  const bool tf32 = in == DType::f32 && p.site.attrs.text("math") == "tf32";
  r.gemm = {.m = s.m,
            .n = s.n,
            .k = s.k,
            .batch = s.batch,
            .ta = s.ta,
            .tb = s.tb,
            .in = in,
            .out = out,
            .tf32 = tf32,
            .adds = part.added != kNone,
            .bias = part.bias != kNone,
            .scaled = part.alpha != 1,
            .activation = part.activation};
  if (part.is_product()) return r;
  auto is_out = [&](int operand) { return p.operand(operand).dtype == out; };
  if (s.k == 0 || r.gemm.empty() || r.apart) return {};
  if (s.batch != 1 && (r.gemm.bias || r.activates())) return {};
  if (r.gemm.bias && !is_out(part.bias)) return {};
  if (r.gemm.adds && !is_out(part.added)) return {};
  if (part.slope_at != kNone && !is_out(part.slope_at)) return {};
  if (r.kept != kNone && p.site.out[static_cast<size_t>(r.kept)].dtype != out) return {};
  if (r.gemm.has_aux() && s.n % 8 != 0) return {};
  // The library's GELU need not be exact to the last bits of a float.
  if (r.activates() && part.activation != Activation::relu && !is_half(out) && !tf32) return {};
  // Where another kernel reads the result anyway, it does this better.
  if (!r.rest_out.empty() && r.activates()) return {};
  return r;
}

// All routes, those that leave least to do first. The plain product is always one of them.
std::vector<Route> routes_of(const Product& p) {
  std::vector<Part> parts;
  find_parts(p, {}, parts);
  std::vector<Route> routes;
  for (Part part : parts) {
    auto route = route_of(p, part);
    if (!route && part.activation == Activation::gelu) {
      part.activation = Activation::gelu_kept;
      route = route_of(p, part);
    }
    if (route) routes.push_back(*route);
  }
  std::stable_sort(routes.begin(), routes.end(),
                   [](const Route& a, const Route& b) { return a.left() < b.left(); });
  return routes;
}

class Prepared {
 public:
  Prepared(const Product& p, const Route& route, Context& context)
      : route_(route), gemm_(route.gemm, context) {
    if (route.rest_out.empty() || p.site.out[0].numel() == 0) return;
    std::vector<TensorType> in, out;
    for (const int i : route.rest_in)
      in.push_back(i == Route::kProduct ? TensorType{p.site.out[0].shape, route.gemm.out}
                   : i == Route::kKept  ? p.site.out[static_cast<size_t>(route.kept)]
                                        : p.operand(i));
    for (const size_t o : route.rest_out) out.push_back(p.site.out[o]);
    rest_ = elementwise_program(route.rest, in, out, context);
  }

  // Of a product that is written to the workspace, before what the library asks for.
  static int64_t product_bytes(const Route& r) {
    const GemmSpec& g = r.gemm;
    return r.apart ? (g.batch * g.m * g.n * dtype_bytes(g.out) + 255) / 256 * 256 : 0;
  }
  int64_t workspace_bytes() const { return product_bytes(route_) + gemm_.workspace_bytes(); }

  void run(std::span<const void* const> in, std::span<void* const> out, void* workspace,
           cudaStream_t stream) const {
    const Part& part = route_.part;
    auto operand = [&](int i) { return i == kNone ? nullptr : in[static_cast<size_t>(i) + 1]; };
    void* const aux = route_.kept != kNone ? out[static_cast<size_t>(route_.kept)]
                                           : const_cast<void*>(operand(part.slope_at));
    void* const product = route_.apart ? workspace : out[route_.product];
    gemm_.run({.a = in[0],
               .b = in[1],
               .d = product,
               .c = operand(part.added),
               .bias = operand(part.bias),
               .aux = aux,
               .workspace = static_cast<std::byte*>(workspace) + product_bytes(route_),
               .alpha = static_cast<float>(part.alpha)},
              stream);
    if (!rest_) return;
    std::vector<const void*> rest_in;
    std::vector<void*> rest_out;
    for (const int i : route_.rest_in)
      rest_in.push_back(i == Route::kProduct ? product
                        : i == Route::kKept  ? out[static_cast<size_t>(route_.kept)]
                                             : operand(i));
    for (const size_t o : route_.rest_out) rest_out.push_back(out[o]);
    rest_->run(rest_in, rest_out, stream);
  }

 private:
  Route route_;
  Gemm gemm_;
  std::shared_ptr<const ElementwiseProgram> rest_;
};

// Seconds of a route with memory of its own. Other memory every time, so that little of it is in
// the second-level cache: between two runs in a step everything else runs.
double seconds_of_route(const Product& p, const Route& route, Context& context) {
  const Prepared prepared(p, route, context);
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  auto random = [&](const TensorType& type) {
    memory.push_back(std::make_unique<DeviceBytes>(type.bytes()));
    fill_random(memory.back()->data(), type.bytes(), type.dtype, context);
    return memory.back()->data();
  };
  int64_t bytes = 0;
  for (const TensorType& type : p.site.in) bytes += type.bytes();
  for (const TensorType& type : p.site.out) bytes += type.bytes();
  const int64_t sets =
      std::clamp<int64_t>(context.device().l2_bytes / std::max<int64_t>(bytes, 1) + 1, 2, 8);
  std::vector<std::vector<const void*>> in(static_cast<size_t>(sets));
  std::vector<std::vector<void*>> out(static_cast<size_t>(sets));
  for (auto& list : in)
    for (const TensorType& type : p.site.in) list.push_back(random(type));
  for (auto& list : out)
    for (const TensorType& type : p.site.out) list.push_back(random(type));
  const DeviceBytes workspace(std::max<int64_t>(prepared.workspace_bytes(), 256));
  return seconds_of(context, [&](int i) {
    const auto set = static_cast<size_t>(i % sets);
    prepared.run(in[set], out[set], workspace.data(), context.stream());
  });
}

// The route that leaves least to do and that the library knows. An activation inside the product is
// not always a gain: it is timed against the best route without.
Route choose(const Product& p, Context& context) {
  const std::vector<Route> routes = routes_of(p);
  const Route* fused = nullptr;
  for (const Route& route : routes) {
    if (fused && route.activates()) continue;
    if (!route.part.is_product() && !Gemm::supported(route.gemm, context)) continue;
    if (route.activates()) {
      fused = &route;
      continue;
    }
    if (!fused) return route;
    const std::string key = fmt::format("route {} {}, or {} then {}", cublasLtGetVersion(),
                                        fused->gemm.str(), route.gemm.str(), route.rest.str());
    const auto faster = [&]() -> std::string {
      try {
        return seconds_of_route(p, *fused, context) <= seconds_of_route(p, route, context)
                   ? "inside"
                   : "behind";
      } catch (const Error&) {
        // No memory to spare, or the library cannot after all.
        (void)cudaGetLastError();
        return "";
      }
    };
    // Behind is what always works.
    return context.choices().find(key, faster, "behind") == "behind" ? route : *fused;
  }
  MR_CHECK(false, "the plain product is always a route");
  return {};
}

std::string decline(const OpSite& site, Context&) {
  if (site.in[0].dtype != site.in[1].dtype)
    return fmt::format("factors of types {} and {}", dtype_name(site.in[0].dtype),
                       dtype_name(site.in[1].dtype));
  return site.in.size() + site.out.size() > ElementwiseProgram::kMaxTensors ? "epilogue too large"
                                                                            : "";
}

int64_t workspace_bytes(const OpSite& site, Context& context) {
  const Route route = choose(Product(site), context);
  return Prepared::product_bytes(route) + Gemm(route.gemm, context).workspace_bytes();
}

std::shared_ptr<const void> prepare(const Call& call, Context& context) {
  const Product p(call.site);
  return std::make_shared<const Prepared>(p, choose(p, context), context);
}

void run(const Call& call) {
  static_cast<const Prepared*>(call.prepared)
      ->run(call.in_data, call.out_data, call.workspace, call.stream);
}

// "lt bias gelu aux (algorithm 66 tile 21)", "lt bias (algorithm 66 tile 21) + 3 element-wise".
std::string detail(const OpSite& site, Context& context) {
  const Route r = choose(Product(site), context);
  std::string text = "lt";
  if (r.part.alpha != 1) text += " factor";
  if (r.part.added != kNone) text += " add";
  if (r.part.bias != kNone) text += " bias";
  if (r.activates()) text += fmt::format(" {}", activation_name(r.part.activation));
  text += " (" + Gemm(r.gemm, context).detail() + ")";
  if (r.rest_out.empty()) return text;
  return text + (r.steps() > 0 ? fmt::format(" + {} element-wise", r.steps()) : " + copy");
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(matmul, {.name = "lt",
                         .decline = decline,
                         .workspace_bytes = workspace_bytes,
                         .prepare = prepare,
                         .run = run,
                         .detail = detail})
