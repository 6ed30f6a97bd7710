// Where a piece of a text file stands, for messages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

struct TextPlace {
  // How the file has the text that begins here: as it is, with every quote in it doubled (CSV), or
  // with escapes (JSON), of which only the begin is known.
  enum class Form : uint8_t { plain, doubled_quotes, escaped };

  std::string file;    // or a flag, or a config key
  int64_t line = 1;    // of its first byte, from 1
  int64_t column = 1;  // in characters, from 1
  int64_t byte = 0;    // of the file, from 0
  Form form = Form::plain;

  // Moves behind `text`, which begins here; stays where it is when that is not known.
  void advance(std::string_view text);
  // "file:line:column (byte 17)", for a place inside `text`, which begins here.
  std::string inside(std::string_view text, size_t at) const;
};

}  // namespace millrace
