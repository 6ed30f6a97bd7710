// Element-wise expressions: one kernel each, written and compiled for it
// (cuda/elementwise_program.h).
#include "ops/elementwise_cuda.h"

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "ops/elementwise.h"

namespace millrace::cuda {
namespace {

Operand::Kind kind_of(Broadcast kind) {
  switch (kind) {
    case Broadcast::full:
      return Operand::Kind::full;
    case Broadcast::scalar:
      return Operand::Kind::scalar;
    case Broadcast::suffix:
      return Operand::Kind::suffix;
    case Broadcast::prefix:
      return Operand::Kind::prefix;
    case Broadcast::random_key:
      break;
  }
  return Operand::Kind::random_key;
}

std::string decline(const OpSite& site, Context&) {
  return site.in.size() + site.out.size() > ElementwiseProgram::kMaxTensors ? "expression too large"
                                                                            : "";
}

std::shared_ptr<const void> prepare(const Call& call, Context& context) {
  const OpSite& site = call.site;
  const Expression e = Expression::parse(site.attrs.text("expr"), static_cast<int>(site.in.size()));
  return elementwise_program(e, site.in, site.out, context);
}

void run(const Call& call) {
  static_cast<const ElementwiseProgram*>(call.prepared)
      ->run(call.in_data, call.out_data, call.stream);
}

}  // namespace

std::shared_ptr<const ElementwiseProgram> elementwise_program(const Expression& e,
                                                              std::span<const TensorType> in,
                                                              std::span<const TensorType> out,
                                                              Context& context) {
  std::vector<Operand> operands;
  for (const TensorType& type : in) {
    OperandLayout layout;
    const std::string fault = operand_layout(type, out[0].shape, layout);
    MR_CHECK(fault.empty(), "{}", fault);
    operands.push_back({type.dtype, kind_of(layout.kind), layout.period});
  }
  std::vector<DType> results;
  for (const TensorType& type : out) results.push_back(type.dtype);
  return std::make_shared<const ElementwiseProgram>(e, operands, results, out[0].numel(), context);
}

}  // namespace millrace::cuda

MR_CUDA_KERNELS(elementwise,
                {.name = "compiled", .decline = decline, .prepare = prepare, .run = run})
