// Error: the one exception type for everything the world can do to us (files, flags, disks,
// devices). MR_CHECK: our own bugs; on in release builds, prints and aborts, never reachable from
// input bytes.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace millrace {

// The values are the exit codes of the command line (docs/ARCHITECTURE.md, "Exit codes").
enum class ErrorCode : int {
  failure = 1,       // the world broke: disk, device, file content
  config = 2,        // usage or configuration
  does_not_fit = 3,  // memory plan exceeds the limit
  findings = 4,      // doctor --fail-on
  regression = 5,    // compare
  diverged = 10,     // non-finite beyond policy
  stopped = 75,      // stopped on request, state saved
};

// Thrown with designated initialisers:
//   throw Error({.code = ErrorCode::config, .what = "unknown key `modle`", .where = "a.yaml:3:1",
//                .expected = "`model`", .got = "`modle`", .remedy = "rename the key"});
// Empty fields are left out of the message.
struct ErrorFields {
  ErrorCode code = ErrorCode::failure;
  std::string what = {};
  std::string where = {};  // file:line:column, key, or graph scope path
  std::string expected = {};
  std::string got = {};
  std::string remedy = {};
};

class Error : public std::exception {
 public:
  explicit Error(ErrorFields fields);
  const char* what() const noexcept override { return message_.c_str(); }
  const ErrorFields& fields() const { return fields_; }
  ErrorCode code() const { return fields_.code; }

 private:
  ErrorFields fields_;
  std::string message_;  // one line each: what (where), expected, got, remedy
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

#define MR_CHECK(condition, ...)                                                \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::millrace::check_failed(__FILE__, __LINE__, #condition,                  \
                               ::millrace::detail::check_message(__VA_ARGS__)); \
  } while (false)

namespace detail {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

}  // namespace millrace
