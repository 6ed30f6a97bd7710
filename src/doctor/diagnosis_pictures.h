// The pictures of a diagnosis: each an SVG that stands in a page or alone.
#pragma once
#include <span>
#include <string>

#include "doctor/diagnosis.h"

namespace millrace {

std::string_view owner_words(Owner owner);  // "waiting for batches"
// The owners with a share of the time, in the order of the bar, the residual last.
std::vector<Owner> owners_in_order(std::span<const double, kOwners> seconds);

// The ops of a profile by intensity and speed, under what the device can do; empty where no ceiling
// or no op with arithmetic is known.
std::string roofline_picture(const nlohmann::ordered_json& profile);
// What each change does to the speed, with its noise; empty where none was tried.
std::string gains_picture(const SearchResult& searched);

}  // namespace millrace
