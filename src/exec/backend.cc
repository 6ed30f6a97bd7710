#include "exec/backend.h"

namespace millrace {
namespace {

class Done : public Late {
 public:
  explicit Done(std::vector<float> values) : values_(std::move(values)) {}
  std::vector<float> wait() override { return values_; }

 private:
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Late> Backend::fetch(std::span<const std::byte* const> numbers) {
  std::vector<float> values(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i)
    copy_out(std::as_writable_bytes(std::span(&values[i], 1)), numbers[i]);
  return std::make_unique<Done>(std::move(values));
}

}  // namespace millrace
