// 0, 1, 2, …: the positions of a sequence; with an input a row for each of its numbers, from which
// it starts (the positions of tokens that follow others).
#include "ops/card.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  const int64_t size = attrs.integer("size");
  if (size < 0) return fmt::format("size {}", size);
  if (!in.empty())
    if (std::string fault = expect_inputs(in, 1); !fault.empty()) return fault;
  if (!in.empty() && (in[0].dtype != DType::i32 || in[0].shape.rank() != 1))
    return fmt::format("starts want i32[B], got {}", in[0].str());
  out = {{in.empty() ? Shape{size} : Shape{in[0].shape[0], size}, DType::i32}};
  return "";
}

// Modulo 2^32, so that no start is an overflow.
template <typename T>
void reference(const RefCall<T>& c) {
  auto* out = static_cast<int32_t*>(c.out_data[0]);
  const int64_t size = c.attrs().integer("size");
  for (int64_t i = 0; i < c.out_shape(0).numel(); ++i) {
    const uint32_t start = c.site.in.empty() ? 0u : static_cast<uint32_t>(c.ids(0)[i / size]);
    out[i] = static_cast<int32_t>(start + static_cast<uint32_t>(i % size));
  }
}

std::vector<OpCase> cases() {
  return {{{}, {{"size", 1}}},
          {{}, {{"size", 37}}},
          {{}, {{"size", 0}}},
          {{index_input({1}, 1000)}, {{"size", 7}}},
          {{index_input({3}, 1000)}, {{"size", 4}}},
          {{index_input({0}, 1000)}, {{"size", 4}}},
          {{index_input({3}, 1000)}, {{"size", 0}}}};
}

}  // namespace

extern const OpCard iota_card;
const OpCard iota_card = {.name = "iota",
                          .summary = "0, 1, 2, … as i32, or a row from each of several starts on",
                          .infer = infer,
                          .no_gradient = "it depends on no number that is trained",
                          MR_REFERENCE,
                          .cases = cases};

}  // namespace millrace
