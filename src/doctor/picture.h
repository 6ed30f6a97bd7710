// What all pictures share: their colours, their opening, and text that cannot break out of them.
#pragma once
#include <string>
#include <string_view>

namespace millrace {

// Text for XML and HTML, between tags and in quoted attributes. Bytes that are not UTF-8 and
// characters that XML does not know become U+FFFD.
std::string escaped(std::string_view text);
// At most so many characters, the last one an ellipsis where some are left out.
std::string shortened(std::string_view text, size_t characters);

// Of an owner of time, a group of spans, a verdict or a severity; grey for what has none.
std::string_view colour(std::string_view name);

// An <svg> that adapts to its width and to a dark page; the caller closes it. Class "b" is
// background, "line" an axis, "mark" a line over colours, "quiet" text that steps back. The style
// holds for pictures only, so that several can stand in one page.
std::string picture_opening(double width, double height, std::string_view description);

}  // namespace millrace
