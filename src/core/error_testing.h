// For tests of refusals.
#pragma once
#include <gtest/gtest.h>

#include "core/error.h"

namespace millrace {

// The Error that `run` throws; a failure when it throws none.
template <typename Run>
ErrorFields error_of(Run run) {
  try {
    run();
  } catch (const Error& e) {
    return e.fields();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

}  // namespace millrace
