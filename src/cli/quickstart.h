// configs/quickstart.yaml, compiled in so that `millrace train` needs no file.
#pragma once
#include <string_view>

namespace millrace {
extern const std::string_view kQuickstartConfig;
}
