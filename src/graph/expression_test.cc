#include "graph/expression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/rng.h"
#include "graph/scalar_functions.h"

namespace millrace {
namespace {

using F = Function;

const F kAll[] = {
#define MR_FUNCTION(name, arity) F::name,
#include "graph/function_list.inc"
#undef MR_FUNCTION
};
constexpr double kKept = 4.0 / 3.0;  // what `keep` gives in evaluate()

std::vector<double> evaluate(const Expression& e, const std::vector<double>& operands) {
  std::vector<double> value;
  auto at = [&](Term t) {
    return t.is_operand() ? operands.at(static_cast<size_t>(t.index()))
                          : value.at(static_cast<size_t>(t.index()));
  };
  for (const Instruction& c : e.code) {
    const int arity = function_arity(c.function);
    if (c.function == F::constant)
      value.push_back(c.number);
    else if (c.function == F::keep)
      value.push_back(kKept);
    else
      value.push_back(scalar_function<double>(c.function, at(c.a), arity == 2 ? at(c.b) : 0.0));
  }
  std::vector<double> results;
  for (Term t : e.results) results.push_back(at(t));
  return results;
}

bool differentiable(F f) {
  return f != F::constant && f != F::keep && f != F::silu_grad && f != F::gelu_grad &&
         f != F::gelu_tanh_grad;
}

// One instruction of each function, arguments taken from `from`.
Term append_any(ExpressionBuilder& b, F f, Term x, Term y, double number) {
  if (f == F::constant) return b.constant(number);
  if (f == F::keep) return b.keep(b.operand(0), 0.25, 7);
  return b.apply(f, x, y);
}

TEST(Expression, EveryFunctionHasANameAndComesBackFromText) {
  for (F f : kAll) {
    ExpressionBuilder b(2);
    const Expression e = b.finish({append_any(b, f, b.operand(0), b.operand(1), 0.1)});
    SCOPED_TRACE(e.str());
    EXPECT_NE(e.str().find(function_name(f)), std::string::npos);
    const Expression back = Expression::parse(e.str(), 2);
    EXPECT_EQ(back.operands, e.operands);
    EXPECT_EQ(back.code, e.code);
    EXPECT_EQ(back.results, e.results);
    EXPECT_EQ(back.str(), e.str());
  }
}

TEST(Expression, TextIsAsDocumented) {
  ExpressionBuilder b(2);
  const Term sum = b.apply(F::add, b.operand(0), b.operand(1)), y = b.apply(F::gelu, sum);
  const Expression e = b.finish({y, sum, b.operand(1)});
  EXPECT_EQ(e.str(), "t0=add(a0,a1);t1=gelu(t0)->t1,t0,a1");
  EXPECT_EQ(e.passthrough(0), -1);
  EXPECT_EQ(e.passthrough(2), 1);
}

TEST(Expression, NumbersComeBackExactly) {
  for (double number : {0.1, 1.0 / 3, -2.5e-300, 1e300, 5e-324, 0.0, -7.0,
                        std::numeric_limits<double>::infinity()}) {
    ExpressionBuilder b(1);
    const Expression e = b.finish({b.apply(F::max, b.operand(0), b.constant(number)),
                                   b.keep(b.operand(0), 0.1, int64_t{1} << 40)});
    EXPECT_EQ(Expression::parse(e.str(), 1).code, e.code) << e.str();
  }
}

TEST(Expression, RandomOnesComeBackFromText) {
  RandomStream random(11, RandomUse::test);
  for (int round = 0; round < 200; ++round) {
    ExpressionBuilder b(3);
    std::vector<Term> terms{b.operand(0), b.operand(1), b.operand(2)};
    auto any = [&] { return terms[random.below(terms.size())]; };
    for (uint64_t n = 1 + random.below(12); n > 0; --n)
      terms.push_back(
          append_any(b, kAll[random.below(std::size(kAll))], any(), any(), random.normal()));
    std::vector<Term> results;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) results.push_back(any());
    const Expression e = b.finish(results);
    const Expression back = Expression::parse(e.str(), 3);
    // NaN constants (log of a negative number, folded) equal nothing, themselves included.
    ASSERT_EQ(back.str(), e.str());
    ASSERT_EQ(back.results, e.results);
  }
}

TEST(ExpressionDeathTest, BadTextIsOurOwnFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Expression::parse("t0=add(a0,a1)", 2), "without `->`");
  EXPECT_DEATH(Expression::parse("t0=sine(a0)->t0", 1), "no function `sine`");
  EXPECT_DEATH(Expression::parse("t0=add(a0,a2)->t0", 2), "out of range");
  EXPECT_DEATH(Expression::parse("t0=neg(t0)->t0", 1), "out of range");
  EXPECT_DEATH(Expression::parse("t0=neg(a0)->t1", 1), "out of range");
}

TEST(ExpressionBuilder, FoldsConstants) {
  for (F f : kAll) {
    if (f == F::constant || f == F::keep) continue;
    ExpressionBuilder b(0);
    double folded = 0;
    const Term t = b.apply(f, b.constant(0.75), b.constant(0.5));
    ASSERT_TRUE(b.is_constant(t, &folded)) << function_name(f);
    EXPECT_EQ(folded, scalar_function<double>(f, 0.75, 0.5)) << function_name(f);
  }
}

TEST(ExpressionBuilder, DropsWhatChangesNothing) {
  ExpressionBuilder b(1);
  const Term x = b.operand(0), zero = b.constant(0), one = b.constant(1);
  EXPECT_EQ(b.apply(F::mul, x, one), x);
  EXPECT_EQ(b.apply(F::mul, one, x), x);
  EXPECT_EQ(b.apply(F::div, x, one), x);
  EXPECT_EQ(b.apply(F::add, x, zero), x);
  EXPECT_EQ(b.apply(F::add, zero, x), x);
  EXPECT_EQ(b.apply(F::sub, x, zero), x);
  double value = 1;
  EXPECT_TRUE(b.is_constant(b.apply(F::mul, x, zero), &value));
  EXPECT_EQ(value, 0);
  // And not what does: 0 - x and 1 / x are not x.
  EXPECT_EQ(b.finish({b.apply(F::sub, zero, x)}).code.size(), 2u);
  EXPECT_EQ(b.finish({b.apply(F::div, one, x)}).code.size(), 2u);
}

TEST(ExpressionBuilder, SharesEqualInstructionsAndRemovesUnusedOnes) {
  ExpressionBuilder b(2);
  const Term sum = b.apply(F::add, b.operand(0), b.operand(1));
  b.apply(F::exp, sum);  // nobody asks for it
  EXPECT_EQ(b.apply(F::add, b.operand(0), b.operand(1)), sum);
  EXPECT_FALSE(b.apply(F::add, b.operand(1), b.operand(0)) == sum);
  EXPECT_EQ(b.finish({b.apply(F::tanh, sum)}).str(), "t0=add(a0,a1);t1=tanh(t0)->t1");
}

TEST(ExpressionBuilder, DropoutStreamsAreNotShared) {
  ExpressionBuilder b(1);
  const Term key = b.operand(0), one = b.keep(key, 0.1, 1);
  EXPECT_EQ(b.keep(key, 0.1, 1), one);
  EXPECT_FALSE(b.keep(key, 0.1, 2) == one);
  EXPECT_FALSE(b.keep(key, 0.2, 1) == one);
}

TEST(ExpressionBuilder, InliningPutsOneExpressionIntoAnother) {
  const Expression inner = Expression::parse("t0=mul(a0,a1);t1=tanh(t0)->t1,t0,a1", 2);
  ExpressionBuilder b(2);
  const std::vector<Term> operands{b.apply(F::neg, b.operand(0)), b.operand(1)};
  const Expression e = b.finish(b.inline_expression(inner, operands));
  const auto got = evaluate(e, {0.3, 0.7});
  EXPECT_EQ(got, (std::vector<double>{std::tanh(-0.3 * 0.7), -0.3 * 0.7, 0.7}));
}

// d of sum(weight[r] * result[r]) by operand i, by a 4-point stencil; error h^4 f^(5) / 30.
double stencil(const Expression& e, std::vector<double> x, const std::vector<double>& weight,
               size_t i) {
  const double h = 1e-3;
  auto f = [&](double at) {
    std::vector<double> moved = x;
    moved[i] += at;
    const auto y = evaluate(e, moved);
    double sum = 0;
    for (size_t r = 0; r < y.size(); ++r) sum += weight[r] * y[r];
    return sum;
  };
  return (f(-2 * h) - 8 * f(-h) + 8 * f(h) - f(2 * h)) / (12 * h);
}

void expect_gradient(const Expression& e, const std::vector<double>& x,
                     const std::vector<double>& weight) {
  std::vector<int> wanted;
  for (int i = 0; i < e.operands; ++i) wanted.push_back(i);
  const Expression d = differentiate(e, wanted);
  EXPECT_EQ(d.operands, e.operands + static_cast<int>(e.results.size()));
  std::vector<double> in = x;
  in.insert(in.end(), weight.begin(), weight.end());
  const auto got = evaluate(d, in);
  ASSERT_EQ(got.size(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = stencil(e, x, weight, i);
    // The stencil's own error: h^4 / 30 f^(5) (below 1e-9 for these functions), and rounding eps /
    // h.
    EXPECT_TRUE(std::fabs(got[i] - want) <= 1e-8 * std::max(1.0, std::fabs(want)))
        << e.str() << " by a" << i << " at " << x[i] << ": " << got[i] << " against " << want;
  }
}

TEST(Differentiate, EveryFunctionAgainstAStencil) {
  for (F f : kAll) {
    if (!differentiable(f)) continue;
    ExpressionBuilder b(function_arity(f));
    const Expression e =
        b.finish({b.apply(f, b.operand(0), function_arity(f) == 2 ? b.operand(1) : Term{})});
    const bool positive = f == F::log || f == F::sqrt || f == F::div;
    for (double x : {-2.5, -0.7, -0.2, 0.3, 0.9, 3.0})
      for (double y : {-1.1, 0.4, 1.7}) {
        std::vector<double> at{positive ? std::fabs(x) + 0.5 : x};
        if (function_arity(f) == 2) at.push_back(positive ? std::fabs(y) + 0.5 : y);
        expect_gradient(e, at, {1.3});
      }
  }
}

TEST(Differentiate, CompositionsWithSharedPartsAndSeveralResults) {
  expect_gradient(
      Expression::parse("t0=mul(a0,a1);t1=tanh(t0);t2=add(t1,a0);t3=mul(t2,t2)->t3,t1,a1", 2),
      {0.4, -0.9}, {0.7, -1.2, 2.0});
  // keep stands for a number: it takes no gradient, and scales that of its partner.
  expect_gradient(Expression::parse("t0=keep(a1,0.25,3);t1=mul(a0,t0);t2=sigmoid(t1)->t2", 2),
                  {0.4, 0.0}, {1.0});
  expect_gradient(
      Expression::parse("t0=constant(0.5);t1=mul(a0,t0);t2=div(t1,a1);t3=sub(t2,a0)->t3", 2),
      {0.4, 1.9}, {1.5});

  RandomStream random(5, RandomUse::test);
  const F smooth[] = {F::add,     F::sub,  F::mul,  F::neg,      F::tanh,
                      F::sigmoid, F::silu, F::gelu, F::gelu_tanh};
  for (int round = 0; round < 100; ++round) {
    ExpressionBuilder b(3);
    std::vector<Term> terms{b.operand(0), b.operand(1), b.operand(2)};
    auto any = [&] { return terms[random.below(terms.size())]; };
    for (int n = 0; n < 6; ++n)
      terms.push_back(b.apply(smooth[random.below(std::size(smooth))], any(), any()));
    const Expression e = b.finish({terms.back(), any()});
    expect_gradient(e, {0.6 * random.normal(), 0.6 * random.normal(), 0.6 * random.normal()},
                    {1.0, -0.5});
  }
}

TEST(Differentiate, OperandsWithoutInfluenceGetZero) {
  const int wanted[] = {1, 0, 2};
  const Expression d = differentiate(Expression::parse("t0=neg(a0);t1=step(a2)->t0,t1", 3), wanted);
  EXPECT_EQ(evaluate(d, {0.3, 0.4, 0.5, 2.0, 3.0}), (std::vector<double>{0, -2, 0}));
}

TEST(Differentiate, AtATieTheSecondArgumentTakesTheGradient) {
  const int wanted[] = {0, 1};
  for (const char* text : {"t0=max(a0,a1)->t0", "t0=min(a0,a1)->t0"}) {
    const Expression d = differentiate(Expression::parse(text, 2), wanted);
    EXPECT_EQ(evaluate(d, {0.5, 0.5, 3.0}), (std::vector<double>{0, 3})) << text;
  }
}

TEST(CompactOperands, DropsUnreadAndMergesEqualOnes) {
  // a0 and a3 are the same value, a1 is not read.
  const Expression e = Expression::parse("t0=add(a0,a2);t1=mul(t0,a3)->t1,a3", 4);
  const int same_as[] = {0, 1, 2, 0};
  std::vector<int> operand_of;
  const Expression c = compact_operands(e, same_as, operand_of);
  EXPECT_EQ(operand_of, (std::vector<int>{0, -1, 1, 0}));
  EXPECT_EQ(c.operands, 2);
  EXPECT_EQ(c.str(), "t0=add(a0,a1);t1=mul(t0,a0)->t1,a0");
  EXPECT_EQ(evaluate(c, {2, 3}), evaluate(e, {2, 100, 3, 2}));
}

TEST(CompactOperands, OneThatReadsNothingKeepsNothing) {
  const int same_as[] = {0, 1};
  std::vector<int> operand_of;
  const Expression c =
      compact_operands(Expression::parse("t0=constant(2)->t0", 2), same_as, operand_of);
  EXPECT_EQ(c.operands, 0);
  EXPECT_EQ(operand_of, (std::vector<int>{-1, -1}));
  EXPECT_EQ(evaluate(c, {}), std::vector<double>{2});
}

TEST(CompactOperands, MergingMakesInstructionsEqual) {
  const int same_as[] = {0, 0};
  std::vector<int> operand_of;
  const Expression c = compact_operands(
      Expression::parse("t0=exp(a0);t1=exp(a1);t2=add(t0,t1)->t2", 2), same_as, operand_of);
  EXPECT_EQ(c.str(), "t0=exp(a0);t1=add(t0,t0)->t1");
}

TEST(ScalarFunctions, DropoutKeepsTheAskedShareAndTheMean) {
  for (double p : {0.1, 0.25, 0.5, 0.9}) {
    const int32_t key[4] = {7, 0, 3, 0};
    const int64_t n = 40000;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) kept += keep_element(key, 2, i, keep_threshold(p));
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(static_cast<double>(kept) / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n));
    EXPECT_NEAR(keep_scale(p) * (1 - static_cast<double>(keep_threshold(p)) / 65536), 1, 1e-15);
  }
}

}  // namespace
}  // namespace millrace
