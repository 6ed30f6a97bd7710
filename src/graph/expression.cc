#include "graph/expression.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "graph/scalar_functions.h"

namespace millrace {

std::string_view function_name(Function f) {
  switch (f) {
#define MR_FUNCTION(name, arity) \
  case Function::name:           \
    return #name;
#include "graph/function_list.inc"
#undef MR_FUNCTION
  }
  return "";
}

int function_arity(Function f) {
  switch (f) {
#define MR_FUNCTION(name, arity) \
  case Function::name:           \
    return arity;
#include "graph/function_list.inc"
#undef MR_FUNCTION
  }
  return 0;
}

namespace {

std::string term_text(Term t) { return fmt::format("{}{}", t.is_operand() ? 'a' : 't', t.index()); }

Function function_named(std::string_view name) {
#define MR_FUNCTION(fn, arity) \
  if (name == #fn) return Function::fn;
#include "graph/function_list.inc"
#undef MR_FUNCTION
  MR_CHECK(false, "no function `{}`", name);
  return Function::constant;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  }
  return parts;
}

Term parse_term(std::string_view text) {
  int index = 0;
  MR_CHECK(text.size() >= 2 && (text[0] == 'a' || text[0] == 't'), "bad term `{}`", text);
  std::from_chars(text.data() + 1, text.data() + text.size(), index);
  return text[0] == 'a' ? Term::operand(index) : Term::result(index);
}

}  // namespace

std::string Expression::str() const {
  std::string s;
  for (size_t i = 0; i < code.size(); ++i) {
    const Instruction& c = code[i];
    s += fmt::format("{}t{}={}(", i ? ";" : "", i, function_name(c.function));
    if (c.function == Function::constant)
      s += fmt::format("{}", c.number);
    else if (c.function == Function::keep)
      s += fmt::format("{},{},{}", term_text(c.a), c.number, c.stream);
    else if (function_arity(c.function) == 1)
      s += term_text(c.a);
    else
      s += term_text(c.a) + ',' + term_text(c.b);
    s += ')';
  }
  s += "->";
  for (size_t i = 0; i < results.size(); ++i) s += (i ? "," : "") + term_text(results[i]);
  return s;
}

Expression Expression::parse(std::string_view text, int operands) {
  Expression e;
  e.operands = operands;
  const size_t arrow = text.find("->");
  MR_CHECK(arrow != std::string_view::npos, "expression without `->`: {}", text);
  for (std::string_view part : split(text.substr(0, arrow), ';')) {
    const size_t equals = part.find('='), open = part.find('(');
    MR_CHECK(
        equals != std::string_view::npos && open != std::string_view::npos && part.back() == ')',
        "bad instruction `{}`", part);
    Instruction c;
    c.function = function_named(part.substr(equals + 1, open - equals - 1));
    const auto args = split(part.substr(open + 1, part.size() - open - 2), ',');
    auto number = [&](size_t i) { return std::strtod(std::string(args.at(i)).c_str(), nullptr); };
    if (c.function == Function::constant) {
      c.number = number(0);
    } else {
      c.a = parse_term(args.at(0));
      if (c.function == Function::keep) {
        c.number = number(1);
        c.stream = std::strtoll(std::string(args.at(2)).c_str(), nullptr, 10);
      } else if (function_arity(c.function) == 2) {
        c.b = parse_term(args.at(1));
      }
    }
    e.code.push_back(c);
  }
  for (std::string_view part : split(text.substr(arrow + 2), ','))
    e.results.push_back(parse_term(part));
  const int size = static_cast<int>(e.code.size());
  auto check = [&](Term t, int limit) {
    MR_CHECK(t.index() < (t.is_operand() ? operands : limit), "term out of range in {}", text);
  };
  for (int i = 0; i < size; ++i) {
    const Instruction& c = e.code[static_cast<size_t>(i)];
    if (function_arity(c.function) >= 1) check(c.a, i);
    if (function_arity(c.function) >= 2) check(c.b, i);
  }
  for (Term t : e.results) check(t, size);
  return e;
}

Term ExpressionBuilder::append(const Instruction& instruction) {
  auto& code = expression_.code;
  for (size_t i = 0; i < code.size(); ++i)
    if (code[i] == instruction) return Term::result(static_cast<int>(i));
  code.push_back(instruction);
  return Term::result(static_cast<int>(code.size()) - 1);
}

Term ExpressionBuilder::constant(double value) {
  return append({Function::constant, {}, {}, value, 0});
}

bool ExpressionBuilder::is_constant(Term t, double* value) const {
  if (t.is_operand()) return false;
  const Instruction& c = expression_.code[static_cast<size_t>(t.index())];
  if (c.function != Function::constant) return false;
  *value = c.number;
  return true;
}

Term ExpressionBuilder::apply(Function f, Term a, Term b) {
  if (function_arity(f) == 1) b = {};
  double x = 0, y = 0;
  const bool ca = is_constant(a, &x), cb = function_arity(f) == 2 && is_constant(b, &y);
  if (ca && (cb || function_arity(f) == 1)) return constant(scalar_function<double>(f, x, y));
  if (f == Function::mul && ca && x == 1) return b;
  if (f == Function::mul && cb && y == 1) return a;
  if (f == Function::mul && ((ca && x == 0) || (cb && y == 0))) return constant(0);
  if (f == Function::div && cb && y == 1) return a;
  if (f == Function::add && ca && x == 0) return b;
  if ((f == Function::add || f == Function::sub) && cb && y == 0) return a;
  return append({f, a, b, 0, 0});
}

Term ExpressionBuilder::keep(Term key, double p, int64_t stream) {
  return append({Function::keep, key, {}, p, stream});
}

std::vector<Term> ExpressionBuilder::inline_expression(const Expression& other,
                                                       std::span<const Term> operands) {
  MR_CHECK(static_cast<int>(operands.size()) == other.operands, "operand count");
  std::vector<Term> results;
  results.reserve(other.code.size());
  auto place = [&](Term t) {
    return t.is_operand() ? operands[static_cast<size_t>(t.index())]
                          : results[static_cast<size_t>(t.index())];
  };
  for (const Instruction& c : other.code) {
    if (c.function == Function::constant)
      results.push_back(constant(c.number));
    else if (c.function == Function::keep)
      results.push_back(keep(place(c.a), c.number, c.stream));
    else
      results.push_back(
          apply(c.function, place(c.a), function_arity(c.function) == 2 ? place(c.b) : Term{}));
  }
  std::vector<Term> out;
  for (Term t : other.results) out.push_back(place(t));
  return out;
}

Expression ExpressionBuilder::finish(std::vector<Term> results) {
  Expression done;
  done.operands = expression_.operands;
  std::vector<bool> needed(expression_.code.size(), false);
  auto need = [&](Term t) {
    if (!t.is_operand()) needed[static_cast<size_t>(t.index())] = true;
  };
  for (Term t : results) need(t);
  for (size_t i = needed.size(); i-- > 0;) {
    if (!needed[i]) continue;
    const Instruction& c = expression_.code[i];
    if (function_arity(c.function) >= 1) need(c.a);
    if (function_arity(c.function) >= 2) need(c.b);
  }
  std::vector<int> to(needed.size(), -1);
  auto place = [&](Term t) {
    return t.is_operand() ? t : Term::result(to[static_cast<size_t>(t.index())]);
  };
  for (size_t i = 0; i < needed.size(); ++i) {
    if (!needed[i]) continue;
    Instruction c = expression_.code[i];
    if (function_arity(c.function) >= 1) c.a = place(c.a);
    if (function_arity(c.function) >= 2) c.b = place(c.b);
    to[i] = static_cast<int>(done.code.size());
    done.code.push_back(c);
  }
  for (Term t : results) done.results.push_back(place(t));
  return done;
}

Expression differentiate(const Expression& e, std::span<const int> wanted) {
  using F = Function;
  const int n = e.operands;
  ExpressionBuilder b(n + static_cast<int>(e.results.size()));
  std::vector<Term> operands;
  for (int i = 0; i < n; ++i) operands.push_back(b.operand(i));
  // The forward values again, one term per instruction.
  Expression all = e;
  all.results.clear();
  for (size_t i = 0; i < e.code.size(); ++i)
    all.results.push_back(Term::result(static_cast<int>(i)));
  const std::vector<Term> value = b.inline_expression(all, operands);
  auto at = [&](Term t) {
    return t.is_operand() ? operands[static_cast<size_t>(t.index())]
                          : value[static_cast<size_t>(t.index())];
  };

  const Term zero = b.constant(0), one = b.constant(1);
  std::vector<Term> operand_grad(static_cast<size_t>(n), zero), grad(e.code.size(), zero);
  auto add_to = [&](Term t, Term g) {
    Term& slot = t.is_operand() ? operand_grad[static_cast<size_t>(t.index())]
                                : grad[static_cast<size_t>(t.index())];
    slot = b.apply(F::add, slot, g);
  };
  for (size_t r = 0; r < e.results.size(); ++r)
    add_to(e.results[r], b.operand(n + static_cast<int>(r)));
  for (size_t i = e.code.size(); i-- > 0;) {
    const Instruction& c = e.code[i];
    const Term g = grad[i], t = value[i];
    double gv = 0;
    if (b.is_constant(g, &gv) && gv == 0) continue;
    auto times = [&](Term x, Term y) { return b.apply(F::mul, x, y); };
    const Term x = function_arity(c.function) >= 1 ? at(c.a) : Term{},
               y = function_arity(c.function) >= 2 ? at(c.b) : Term{};
    switch (c.function) {
      case F::constant:
      case F::keep:
      case F::step:
        break;
      case F::add:
        add_to(c.a, g);
        add_to(c.b, g);
        break;
      case F::sub:
        add_to(c.a, g);
        add_to(c.b, b.apply(F::neg, g));
        break;
      case F::mul:
        add_to(c.a, times(g, y));
        add_to(c.b, times(g, x));
        break;
      case F::div: {
        const Term q = b.apply(F::div, g, y);
        add_to(c.a, q);
        add_to(c.b, b.apply(F::neg, times(q, t)));
        break;
      }
      case F::max:
      case F::min: {
        // At a tie the second argument takes the gradient, as the value does.
        const Term d = c.function == F::max ? b.apply(F::sub, x, y) : b.apply(F::sub, y, x);
        const Term first = b.apply(F::step, d);
        add_to(c.a, times(g, first));
        add_to(c.b, times(g, b.apply(F::sub, one, first)));
        break;
      }
      case F::neg:
        add_to(c.a, b.apply(F::neg, g));
        break;
      case F::exp:
        add_to(c.a, times(g, t));
        break;
      case F::log:
        add_to(c.a, b.apply(F::div, g, x));
        break;
      case F::sqrt:
        add_to(c.a, b.apply(F::div, times(g, b.constant(0.5)), t));
        break;
      case F::tanh:
        add_to(c.a, times(g, b.apply(F::sub, one, times(t, t))));
        break;
      case F::sigmoid:
        add_to(c.a, times(g, times(t, b.apply(F::sub, one, t))));
        break;
      case F::relu:
        add_to(c.a, times(g, b.apply(F::step, x)));
        break;
      case F::silu:
        add_to(c.a, times(g, b.apply(F::silu_grad, x)));
        break;
      case F::gelu:
        add_to(c.a, times(g, b.apply(F::gelu_grad, x)));
        break;
      case F::gelu_tanh:
        add_to(c.a, times(g, b.apply(F::gelu_tanh_grad, x)));
        break;
      case F::silu_grad:
      case F::gelu_grad:
      case F::gelu_tanh_grad:
        MR_CHECK(false, "second derivative of {} asked for", function_name(c.function));
    }
  }
  std::vector<Term> results;
  for (int i : wanted) results.push_back(operand_grad[static_cast<size_t>(i)]);
  return b.finish(std::move(results));
}

Expression compact_operands(const Expression& e, std::span<const int> same_as,
                            std::vector<int>& operand_of) {
  std::vector<bool> used(static_cast<size_t>(e.operands), false);
  auto representative = [&](int i) { return same_as[static_cast<size_t>(i)]; };
  auto use = [&](Term t) {
    if (t.is_operand()) used[static_cast<size_t>(representative(t.index()))] = true;
  };
  for (const Instruction& c : e.code) {
    if (function_arity(c.function) >= 1) use(c.a);
    if (function_arity(c.function) >= 2) use(c.b);
  }
  for (Term t : e.results) use(t);
  operand_of.assign(static_cast<size_t>(e.operands), -1);
  int count = 0;
  for (int i = 0; i < e.operands; ++i)
    if (used[static_cast<size_t>(i)]) operand_of[static_cast<size_t>(i)] = count++;
  for (int i = 0; i < e.operands; ++i)
    operand_of[static_cast<size_t>(i)] = operand_of[static_cast<size_t>(representative(i))];
  ExpressionBuilder b(count);
  std::vector<Term> terms;
  for (int i = 0; i < e.operands; ++i)
    terms.push_back(Term::operand(std::max(0, operand_of[static_cast<size_t>(i)])));
  return b.finish(b.inline_expression(e, terms));
}

}  // namespace millrace
