// What a profile says, to people and to programs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "doctor/profile.h"

namespace millrace {

// Seconds by owner, as a table with bars, without those that took none; the residual last.
std::string budget_text(std::span<const double, kOwners> seconds);
// "+-1.2 %", or that it is not known.
std::string noise_text(std::optional<double> share, std::string_view sign = "+-");
std::string profile_report(const Profile& profile);
nlohmann::ordered_json profile_json(const Profile& profile);
// The timeline as an SVG: a row for each lane, who worked and what was waited for.
std::string timeline_picture(const Timeline& timeline);

}  // namespace millrace
