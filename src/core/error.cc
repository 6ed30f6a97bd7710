#include "core/error.h"

#include <cstdio>
#include <cstdlib>

namespace millrace {

Error::Error(ErrorFields fields) : fields_(std::move(fields)) {
  message_ = fields_.what;
  auto line = [&](const char* label, const std::string& text) {
    if (!text.empty()) message_ += fmt::format("\n  {:<9} {}", label, text);
  };
  line("where:", fields_.where);
  line("expected:", fields_.expected);
  line("got:", fields_.got);
  line("remedy:", fields_.remedy);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "millrace: internal error at %s:%d: %s %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace millrace
