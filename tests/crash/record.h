// The results of the reliability tests: a line for each promise (promise, test, count, outcome,
// with tabs), of which ./check makes docs/RELIABILITY.md. Without MILLRACE_RELIABILITY (a file)
// nothing is written.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace millrace {

inline bool full_counts() {
  const char* full = std::getenv("MILLRACE_FULL");
  return full && std::string(full) == "1";
}

// `outcome` states what was seen. A test that has failed records that instead.
inline void record(const std::string& promise, int64_t count, const std::string& outcome) {
  const char* path = std::getenv("MILLRACE_RELIABILITY");
  if (!path) return;
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::ofstream(path, std::ios::app)
      << promise << '\t' << info->test_suite_name() << '.' << info->name() << '\t' << count << '\t'
      << (testing::Test::HasFailure() ? "FAILED" : outcome) << '\n';
}

}  // namespace millrace
