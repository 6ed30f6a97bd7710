// Results for whoever reads standard output: it may be a full disk or a closed pipe.
#pragma once
#include <cstdio>
#include <string_view>

#include "core/error.h"

namespace millrace {

// Writes at once; Error when it cannot be done.
inline void put(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error({.code = ErrorCode::failure,
                 .what = "standard output cannot be written",
                 .where = "standard output",
                 .remedy = "check where it goes"});
}

}  // namespace millrace
