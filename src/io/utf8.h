// Text from outside that is to be UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF).
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "io/text_place.h"

namespace millrace {

// How many bytes from the front on are whole characters.
size_t utf8_length(std::string_view text);

// The Error for the first byte of `text`, which begins at `place`, that is not UTF-8.
std::optional<Error> utf8_fault(std::string_view text, const TextPlace& place,
                                std::string_view remedy);

// Error when a file begins with the byte order mark of UTF-16, in which line ends and quotes are
// other bytes than in UTF-8.
void refuse_utf16(std::string_view begin, const std::string& file);

}  // namespace millrace
