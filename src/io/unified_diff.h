// Two texts side by side, as people and `patch` read it.
#pragma once
#include <string>
#include <string_view>

namespace millrace {

// What changed, as `diff -u` shows it with three lines of context; empty when nothing did.
std::string unified_diff(std::string_view before, std::string_view after,
                         const std::string& before_name, const std::string& after_name);

}  // namespace millrace
