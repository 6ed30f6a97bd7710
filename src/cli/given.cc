#include "cli/given.h"

namespace millrace {

void Given::refuse(std::initializer_list<const char*> those, const std::string& what,
                   const std::string& remedy) const {
  for (const char* option : those)
    if (has(option))
      throw Error({.code = ErrorCode::config,
                   .what = fmt::format("{} does nothing in {}", option, what),
                   .where = fmt::format("command line: {}", option),
                   .expected = fmt::format("options of {}", what),
                   .got = option,
                   .remedy = remedy});
}

BeamSpelling option_spelling() {
  return {[](const std::string& option) { return "command line: --" + option; },
          [](const std::string& option, const std::string& value) {
            return "--" + option + " " + value;
          }};
}

BeamSpelling key_spelling(const Schema& schema) {
  auto key = [](std::string option) {
    std::replace(option.begin(), option.end(), '-', '_');
    return "training.eval_" + option;
  };
  return {[key, &schema](const std::string& option) { return schema.where(key(option)); },
          [key](const std::string& option, const std::string& value) {
            return key(option) + "=" + value;
          }};
}

}  // namespace millrace
