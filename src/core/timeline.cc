#include "core/timeline.h"

#include <algorithm>

namespace millrace {

uint32_t Timeline::lane(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(std::ranges::find(lanes_, name) - lanes_.begin());
  if (at == lanes_.size()) lanes_.emplace_back(name);
  return static_cast<uint32_t>(at);
}

void Timeline::add(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < spans_.capacity())
    spans_.push_back(span);
  else
    ++left_out_;
}

}  // namespace millrace
