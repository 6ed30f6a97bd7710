#include "io/json_parser.h"

namespace millrace {

nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& keep) {
  return nlohmann::json::parse(text, keep);
}

}  // namespace millrace
