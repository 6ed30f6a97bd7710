// Expression: the small straight-line program inside an `elementwise` node or a GEMM epilogue.
// Operands a0, a1, … are the node's inputs at one element; t0, t1, … are results of functions; what
// follows
// "->" are the node's outputs:   t0=add(a0,a1);t1=gelu(t0)->t1,t0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace millrace {

enum class Function : uint8_t {
#define MR_FUNCTION(name, arity) name,
#include "graph/function_list.inc"
#undef MR_FUNCTION
};

std::string_view function_name(Function f);
int function_arity(Function f);

// An operand (index >= 0) or an instruction result (index < 0 stands for ~instruction).
class Term {
 public:
  Term() = default;
  static Term operand(int i) { return Term(i); }
  static Term result(int i) { return Term(~i); }
  bool is_operand() const { return index_ >= 0; }
  int index() const { return index_ >= 0 ? index_ : ~index_; }
  friend bool operator==(Term, Term) = default;

 private:
  explicit Term(int index) : index_(index) {}
  int index_ = 0;
};

struct Instruction {
  Function function = Function::constant;
  Term a, b;
  double number = 0;   // constant: the value; keep: p
  int64_t stream = 0;  // keep: which random stream
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

struct Expression {
  int operands = 0;
  std::vector<Instruction> code;
  std::vector<Term> results;

  std::string str() const;
  // The inverse of str(). MR_CHECK on bad text: expressions are written by us, never by users.
  static Expression parse(std::string_view text, int operands);
  // -1, or the operand that is result i unchanged.
  int passthrough(size_t i) const { return results[i].is_operand() ? results[i].index() : -1; }
};

// Builds expressions: shares equal instructions, folds constants, drops multiplication by one.
class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(int operands) { expression_.operands = operands; }
  Term operand(int i) { return Term::operand(i); }
  Term constant(double value);
  Term apply(Function f, Term a, Term b = {});
  Term keep(Term key, double p, int64_t stream);
  // Runs `other` inside this expression with its operands replaced by `operands`; returns its
  // results.
  std::vector<Term> inline_expression(const Expression& other, std::span<const Term> operands);
  bool is_constant(Term t, double* value) const;
  // Finishes with these results, instructions nobody needs removed.
  Expression finish(std::vector<Term> results);
  Expression& expression() { return expression_; }

 private:
  Term append(const Instruction& instruction);
  Expression expression_;
};

// Reverse-mode derivative. Operands of the answer: those of `e`, then one cotangent per result of
// `e` (in order); results: the gradient for each operand in `wanted`. An operand that does not
// influence the results gets the constant 0.
Expression differentiate(const Expression& e, std::span<const int> wanted);

// Drops operands that are not read and merges equal ones: on return `operand_of[i]` is the new
// index of old operand i, or -1. `same_as[i]` <= i names the first operand that is the same value
// as i.
Expression compact_operands(const Expression& e, std::span<const int> same_as,
                            std::vector<int>& operand_of);

}  // namespace millrace
