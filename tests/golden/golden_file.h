// Reads the golden files of this folder and compares with them.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace millrace {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : file_(fs::path(MILLRACE_SOURCE_DIR) / "tests" / "golden" / (name + ".safetensors")) {}

  const SafetensorsFile& file() const { return file_; }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<int64_t> shape(const std::string& name) const { return entry(name).shape; }
  std::vector<float> f32(const std::string& name) const { return raw<float>(name, "F32"); }
  std::vector<double> f64(const std::string& name) const { return raw<double>(name, "F64"); }
  std::vector<int32_t> i32(const std::string& name) const { return raw<int32_t>(name, "I32"); }

 private:
  const SafetensorsFile::Entry& entry(const std::string& name) const {
    const auto* found = file_.find(name);
    MR_CHECK(found, "{} has no tensor {}", file_.path().string(), name);
    return *found;
  }
  template <typename T>
  std::vector<T> raw(const std::string& name, const char* dtype) const {
    const auto& e = entry(name);
    MR_CHECK(e.dtype == dtype, "{} is {}, wants {}", name, e.dtype, dtype);
    std::vector<T> values(static_cast<size_t>(e.numel()));
    if (!values.empty()) std::memcpy(values.data(), file_.bytes(e).data(), file_.bytes(e).size());
    return values;
  }

  SafetensorsFile file_;
};

// Every |got - wanted| <= tolerance * largest |wanted|, the measure of the README's table. NaN
// fails.
template <typename T>
testing::AssertionResult near_relative_to_largest(std::span<const T> got, std::span<const T> wanted,
                                                  double tolerance) {
  if (got.size() != wanted.size())
    return testing::AssertionFailure()
           << got.size() << " values against " << wanted.size() << " in the file";
  double largest = 0, worst = 0;
  for (T w : wanted) largest = std::max(largest, std::fabs(static_cast<double>(w)));
  for (size_t i = 0; i < got.size(); ++i) {
    const double gap = std::fabs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    if (!(gap <= tolerance * largest))
      return testing::AssertionFailure() << fmt::format(
                 "element {}: got {}, the file has {}; {:.2e} of the largest value, allowed {:.2e}",
                 i, got[i], wanted[i], gap / largest, tolerance);
    worst = std::max(worst, gap);
  }
  return testing::AssertionSuccess()
         << fmt::format("worst {:.2e} of the largest value", worst / largest);
}

template <typename T>
testing::AssertionResult near_relative_to_largest(const std::vector<T>& got,
                                                  const std::vector<T>& wanted, double tolerance) {
  return near_relative_to_largest(std::span<const T>(got), std::span<const T>(wanted), tolerance);
}

}  // namespace millrace
