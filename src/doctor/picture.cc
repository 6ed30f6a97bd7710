#include "doctor/picture.h"

#include <fmt/format.h>

#include "core/text.h"

namespace millrace {

std::string escaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [value, bytes] = code_point_at(text, at);
    const bool known = bytes > 0 && (value >= 0x20 || value == '\t' || value == '\n') &&
                       value != 0xFFFE && value != 0xFFFF;
    if (!known)
      append_utf8(0xFFFD, out);
    else if (value == '<')
      out += "&lt;";
    else if (value == '>')
      out += "&gt;";
    else if (value == '&')
      out += "&amp;";
    else if (value == '"')
      out += "&quot;";
    else if (value == '\'')
      out += "&#39;";
    else
      out += text.substr(at, bytes);
    at += bytes > 0 ? bytes : 1;
  }
  return out;
}

std::string shortened(std::string_view text, size_t characters) {
  size_t last = 0, count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    if (count + 1 == characters) last = at;
    const size_t bytes = code_point_at(text, at).bytes;
    at += bytes > 0 ? bytes : 1;
  }
  return count <= characters ? std::string(text) : std::string(text.substr(0, last)) + "…";
}

std::string_view colour(std::string_view name) {
  // One class of colour for what is work of the model, for making batches, and for each kind of
  // waiting; what people are told of is green, grey, or yellow to red.
  constexpr std::pair<std::string_view, std::string_view> kColours[] = {
      {"forward", "#4c78a8"}, {"backward", "#f58518"},    {"optimizer", "#54a24b"},
      {"run", "#9ecae9"},     {"input", "#72b7b2"},       {"input_wait", "#e45756"},
      {"h2d", "#b279a2"},     {"idle_launch", "#d67195"}, {"checkpoint", "#9d755d"},
      {"eval", "#eeca3b"},    {"eval_texts", "#b79a20"},  {"sample", "#ff9da6"},
      {"logging", "#79706e"}, {"comm", "#d6a5c9"},        {"faster", "#54a24b"},
      {"slower", "#e45756"},  {"low", "#eeca3b"},         {"medium", "#f58518"},
      {"high", "#e45756"}};
  for (const auto& [key, value] : kColours)
    if (key == name) return value;
  return "#bab0ac";
}

std::string picture_opening(double width, double height, std::string_view description) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\" viewBox=\"0 0 {:.0f} {:.0f}\" "
      "role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.picture .b{{fill:#fff}}.picture text{{fill:#222}}.picture .quiet{{fill:#666}}"
      ".picture .line{{stroke:#888}}.picture "
      ".mark{{stroke:#222}}@media(prefers-color-scheme:dark){{"
      ".picture .b{{fill:#181a1f}}.picture text{{fill:#ddd}}.picture .quiet{{fill:#aaa}}"
      ".picture .mark{{stroke:#ddd}}}}"
      "</style>\n<rect class=\"b\" width=\"100%\" height=\"100%\"/>\n",
      width, height, escaped(description));
}

}  // namespace millrace
