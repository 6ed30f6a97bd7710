// Records that are longer than a config allows, for one that would rather not have them cut
// (data.on_long_record).
#pragma once
#include "data/batches.h"

namespace millrace {

// Error with file and line of the first record of a split that batches of these options would cut.
// `source`: how the data set was opened; its files are read again to find that line.
void refuse_long_records(const Dataset& data, SplitName split, const BatchOptions& options,
                         const DataOptions& source);

}  // namespace millrace
