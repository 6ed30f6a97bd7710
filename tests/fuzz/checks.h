// What every target does: watches how a reader refuses, and reads again what was written.
#pragma once
#include <string>
#include <string_view>

#include "core/error.h"
#include "io/yaml.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {

inline constexpr size_t kLongestMessage = 4000;

inline void require(bool condition, const char* what) {
  if (!condition) throw Broken(what);
}

// Runs the reader. A refusal must be an Error that says everything and can be shown anywhere.
template <typename Read>
Verdict verdict_of(std::string_view place, Read read) {
  try {
    read();
    return {true, ""};
  } catch (const Error& error) {
    const ErrorFields& f = error.fields();
    require(!f.what.empty() && !f.where.empty() && !f.expected.empty() && !f.got.empty() &&
                !f.remedy.empty(),
            "a refusal leaves out a field");
    require(f.where.find(place) != std::string::npos, "a refusal does not say where");
    const std::string message = error.what();
    require(clean_text_length(message) == message.size(),
            "a refusal holds control characters or bytes that are not UTF-8");
    require(message.size() <= kLongestMessage, "a refusal is longer than a page");
    return {false, message};
  }
}

// What was written by us can be read; the result of `read` is what the caller compares.
template <typename Read>
auto read_again(Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Broken(fmt::format("what was written cannot be read: {}", error.what()));
  }
}

}  // namespace millrace::fuzz
