// Smaller models and shorter sequences: what they would bring, predicted and never tried, because
// they change what is trained.
#pragma once
#include <vector>

#include "cli/load.h"
#include "doctor/diagnosis.h"
#include "doctor/machine_profile.h"

namespace millrace {

// The largest gains first; none where nothing is known of the device.
std::vector<Advice> advise(const RunRequest& request, LoadedRun& run, Backend& backend,
                           const MachineProfile& machine);

}  // namespace millrace
