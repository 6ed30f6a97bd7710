// Text that arrives in pieces which may end inside a character (a byte tokenizer draws single
// bytes): hands on whole characters only, and U+FFFD for bytes that are none.
#pragma once
#include <string>
#include <string_view>

namespace millrace {

class Utf8Stream {
 public:
  std::string add(std::string_view bytes);  // what is complete now
  std::string finish();                     // U+FFFD when the text ended inside a character

 private:
  std::string waiting_;
};

}  // namespace millrace
