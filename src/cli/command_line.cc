#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>

#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

Error refusal(const std::string& what, const std::string& where, const std::string& expected,
              const std::string& got, const std::string& remedy) {
  return Error({.code = ErrorCode::config,
                .what = what,
                .where = "command line: " + where,
                .expected = expected,
                .got = got,
                .remedy = remedy});
}

Error bad_value(const CLI::Option& option, const std::string& expected, const std::string& got,
                const std::string& instead) {
  return refusal("bad value for " + option.get_name(),
                 option.get_name() + " " + printable(got, 200), expected, quote(got, 200), instead);
}

// "millrace data stats"
std::string name_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent ? name_of(*parent) + " " : "") + command.get_name();
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string did_you_mean(const std::string& near, const std::string& otherwise) {
  return near.empty() ? otherwise : fmt::format("did you mean `{}`?", near);
}

}  // namespace

template <typename Number>
CLI::Option* within(CLI::Option* option, Number low, Number high) {
  const bool open = high == std::numeric_limits<Number>::max();
  const std::string limits =
      open ? fmt::format("at least {}", low) : fmt::format("{} to {}", low, high);
  return option->check(
      [=](const std::string& text) {
        Number value{};
        const char *begin = text.data() + (text.starts_with('+') ? 1 : 0),
                   *end = text.data() + text.size();
        const auto [stop, fault] = std::from_chars(begin, end, value);
        // NaN is within nothing.
        if (fault == std::errc() && stop == end && value >= low && value <= high)
          return std::string();
        const std::string usual = option->get_default_str();
        throw bad_value(
            *option,
            fmt::format("{}, {}", std::is_integral_v<Number> ? "an integer" : "a number", limits),
            text,
            fmt::format("{} {}", option->get_name(),
                        usual.empty() ? fmt::format("{}", low) : usual));
      },
      limits);
}
template CLI::Option* within(CLI::Option*, int64_t, int64_t);
template CLI::Option* within(CLI::Option*, uint64_t, uint64_t);
template CLI::Option* within(CLI::Option*, double, double);

CLI::Option* one_of(CLI::Option* option, std::vector<std::string> words) {
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  return option->check(
      [=](const std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        const std::string name = option->get_name();
        throw bad_value(*option, "one of " + list, text,
                        did_you_mean(nearest(text, words), name + " " + words.front()));
      },
      list);
}

Error command_line_error(const CLI::App& app, const CLI::ParseError& fault) {
  const CLI::App* command = &app;  // the innermost that was named
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::string name = name_of(*command), help = name + " --help";
  const std::vector<std::string> rest = app.remaining(true);
  // Told before what is missing: it may have been meant for that.
  for (const std::string& word : rest) {
    if (!word.starts_with('-')) continue;
    const auto options = options_of(*command);
    const std::string option = word.substr(0, word.find('='));
    return refusal(fmt::format("{} has no option {}", name, quote(option)), printable(word, 200),
                   fmt::format("{}", fmt::join(options, ", ")), quote(option),
                   did_you_mean(nearest(option, options), help));
  }
  const auto commands = commands_of(*command);
  if (!commands.empty()) {
    const std::string got = rest.empty() ? "" : rest.front();
    return refusal(
        "no command is named for " + name, name, fmt::format("{}", fmt::join(commands, ", ")),
        got.empty() ? "nothing" : quote(got), did_you_mean(nearest(got, commands), help));
  }
  if (!rest.empty())
    return refusal(fmt::format("{} takes no {} as well", name, quote(rest.front())),
                   printable(rest.front(), 200), "what `" + help + "` names", quote(rest.front()),
                   "leave it out");
  for (const CLI::Option* option : command->get_options())
    if (option->get_required() && option->count() == 0)
      return refusal(fmt::format("{} is missing", option->get_name()), name,
                     option->get_description(), "nothing", help);
  if (dynamic_cast<const CLI::ExcludesError*>(&fault))
    return refusal(printable(fault.what(), 200), name, "one of the two", "both",
                   "leave one of them out");
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&fault))
    return refusal("an option has no value, or too many", name, "one value",
                   printable(fault.what(), 200), help);
  return refusal("the command line cannot be read", name, "what `" + help + "` says",
                 printable(fault.what(), 200), help);
}

}  // namespace millrace
