// A device that is not here: plans are made for it as its profile says, and nothing can run.
#pragma once
#include <memory>

#include "doctor/machine_profile.h"

namespace millrace {

// Of a CPU the kernels are those of this one. Of a GPU they are its libraries', which are not
// asked: their workspaces are not known, but for the one that is large, the logits of the loss
// head.
std::unique_ptr<Backend> absent_device(const MachineProfile& machine,
                                       const BackendOptions& options = {});

}  // namespace millrace
