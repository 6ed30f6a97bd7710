// 0, 1, 2, …: the positions of a sequence; with an input they start there (the positions of tokens
// that follow others), with `repeat` in so many equal rows (one for every sequence of a batch).
#include "ops/card.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  const int64_t size = attrs.integer("size"), repeat = attrs.integer("repeat", 0);
  if (size < 0 || repeat < 0) return fmt::format("size {}, repeat {}", size, repeat);
  if (!in.empty())
    if (std::string fault = expect_inputs(in, 1); !fault.empty()) return fault;
  if (!in.empty() && in[0] != TensorType{Shape{}, DType::i32})
    return fmt::format("start wants i32[], got {}", in[0].str());
  out = {{repeat > 0 ? Shape{repeat, size} : Shape{size}, DType::i32}};
  return "";
}

// Modulo 2^32, so that no start is an overflow.
template <typename T>
void reference(const RefCall<T>& c) {
  auto* out = static_cast<int32_t*>(c.out_data[0]);
  const int64_t size = c.attrs().integer("size");
  const uint32_t start = c.site.in.empty() ? 0u : static_cast<uint32_t>(*c.ids(0));
  for (int64_t i = 0; i < c.out_shape(0).numel(); ++i)
    out[i] = static_cast<int32_t>(start + static_cast<uint32_t>(i % size));
}

std::vector<OpCase> cases() {
  return {{{}, {{"size", 1}}},
          {{}, {{"size", 37}}},
          {{}, {{"size", 0}}},
          {{}, {{"size", 5}, {"repeat", 3}}},
          {{index_input({}, 1000)}, {{"size", 7}}},
          {{index_input({}, 1000)}, {{"size", 4}, {"repeat", 2}}}};
}

}  // namespace

extern const OpCard iota_card;
const OpCard iota_card = {.name = "iota",
                          .summary = "0, 1, 2, … as i32, or from a start on; in `repeat` rows",
                          .infer = infer,
                          .no_gradient = "it depends on no number that is trained",
                          MR_REFERENCE,
                          .cases = cases};

}  // namespace millrace
