// What is compiled when a model meets a device is compiled here without one.
#include "cuda/run_time_compiler.h"

#include <gtest/gtest.h>

#include "core/error_testing.h"
#include "cuda/elementwise_source.h"
#include "graph/expression.h"

namespace millrace::cuda {
namespace {

// Every function, every kind of operand, every type, in the mixtures that steps have.
TEST(RunTimeCompiler, CompilesEveryElementwiseFunction) {
  ExpressionBuilder b(5);
  Term all = b.apply(Function::mul, b.operand(0), b.keep(b.operand(4), 0.25, 7));
#define MR_FUNCTION(name, arity)                      \
  if constexpr (arity == 2)                           \
    all = b.apply(Function::name, all, b.operand(1)); \
  else if constexpr (arity == 1)                      \
    if (Function::name != Function::keep) all = b.apply(Function::name, all);
#include "graph/function_list.inc"
#undef MR_FUNCTION
  all = b.apply(Function::add, all, b.apply(Function::mul, b.operand(2), b.operand(3)));
  const Expression e = b.finish({all, b.apply(Function::neg, all)});
  using Kind = Operand::Kind;
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t period : {64, 6})
      for (const bool full : {false, true}) {
        const DType wide = full ? DType::f32 : type;
        const Operand in[] = {{type, Kind::full, 1},
                              {type, Kind::suffix, period},
                              {wide, Kind::prefix, period},
                              {DType::f32, Kind::scalar, 1},
                              {DType::i32, Kind::random_key, 1}};
        const DType out[] = {type, wide};
        const std::string source = elementwise_source(e, in, out, 64 * period);
        std::vector<const char*> architectures{"sm_80"};
        if (full && period == 6) architectures = {"sm_80", "sm_90", "sm_100", "sm_120"};
        for (const char* architecture : architectures)
          EXPECT_FALSE(compile_program(source, "elementwise", architecture).empty());
      }
}

TEST(RunTimeCompiler, GivesPtxToADeviceThatIsNewerThanIt) {
  const std::string source = "extern \"C\" __global__ void one(int* x) { *x = 1; }";
  EXPECT_NE(compile_program(source, "one", "sm_999").find(".visible .entry one("),
            std::string::npos);
  EXPECT_EQ(compile_program(source, "one", "sm_90").find(".visible .entry one("),
            std::string::npos);
}

TEST(RunTimeCompiler, SaysWhatIsWrongAndWhere) {
  const ErrorFields said = error_of([] { compile_program("nonsense", "broken", "sm_80"); });
  EXPECT_NE(said.what.find("NVRTC"), std::string::npos) << said.what;
  EXPECT_NE(said.where.find("broken.cu for sm_80"), std::string::npos) << said.where;
  EXPECT_NE(said.got.find("nonsense"), std::string::npos) << said.got;
}

}  // namespace
}  // namespace millrace::cuda
