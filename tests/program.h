// The program under test: what was built, or, where the tests were built elsewhere,
// MILLRACE_BINARY.
#pragma once
#include <cstdlib>

namespace millrace {

inline const char* program_under_test() {
  const char* elsewhere = std::getenv("MILLRACE_BINARY");
  return elsewhere ? elsewhere : MILLRACE_BINARY;
}

}  // namespace millrace
