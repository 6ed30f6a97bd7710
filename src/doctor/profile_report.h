// What a profile says, to people and to programs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "doctor/profile.h"

namespace millrace {

std::string profile_report(const Profile& profile);
nlohmann::ordered_json profile_json(const Profile& profile);
// The timeline as an SVG: a row for each lane, who worked and what was waited for.
std::string timeline_picture(const Timeline& timeline);

}  // namespace millrace
