// A timeline as a trace that Perfetto, chrome://tracing and readers of Kineto's files open: JSON in
// the form of PyTorch's profiler, one thread for each lane, packed with gzip.
#pragma once
#include <string>

#include "core/timeline.h"

namespace millrace {

// `device` and `process` are what it says of itself.
std::string trace_json(const Timeline& timeline, const std::string& process,
                       const std::string& device);
std::string gzip(const std::string& bytes);

}  // namespace millrace
