// A diagnosis as one page with pictures: report.html. It needs nothing beside it, no network and no
// script, and is made for light and dark screens, phones and paper.
#pragma once
#include "doctor/diagnosis.h"

namespace millrace {

std::string diagnosis_page(const Diagnosis& d);

}  // namespace millrace
