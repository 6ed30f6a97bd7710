// The one place where the JSON parser is instantiated: under the sanitizers it takes a compiler
// six seconds, and a dozen files want it.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace millrace {

// As nlohmann::json::parse; throws its exceptions.
nlohmann::json parse_json(std::string_view text,
                          const nlohmann::json::parser_callback_t& keep = nullptr);

}  // namespace millrace
