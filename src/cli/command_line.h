// What is wrong with a command line, in the form of every other refusal: where, what was expected,
// what was there, and what to do. CLI11's own words have no remedy.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/error.h"

namespace millrace {

// A number from `low` to `high`, both included; the largest of its type is no limit.
template <typename Number>
CLI::Option* within(CLI::Option* option, Number low, Number high);
CLI::Option* one_of(CLI::Option* option, std::vector<std::string> words);

// What CLI11 found when it parsed for `app`.
Error command_line_error(const CLI::App& app, const CLI::ParseError& fault);

}  // namespace millrace
