// What was measured of a kind of device, kept in a file: how fast it multiplies and copies at best,
// how near to that each op comes, and what it draws. `profile` writes the one of this machine into
// the cache, `plan` predicts times with it; the files of some devices are compiled in
// (configs/devices), so that `plan` can speak of a device that is not here.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/file.h"
#include "exec/backend.h"

namespace millrace {

// What profiles saw of an op's nodes, summed: how many, how long they took, and how long each would
// at the ceiling.
struct OpTime {
  double nodes = 0, seconds = 0, limit_seconds = 0;
  OpTime& add(const OpTime& other, double times = 1);
};
// Small nodes are further from their limit than large ones, and by how much depends on the op: what
// was seen is kept by size, in classes that are each four times the one before.
using OpTimes = std::map<int, OpTime>;
int size_class(double limit_seconds);
// What a node takes, between the sizes that were seen of its op. `usual` is how many times their
// limit ops take on this machine, all in all.
double expected_seconds(const OpTimes& seen, double limit_seconds, double usual);

struct PrecisionProfile {
  Ceiling ceiling;
  std::string ceiling_date;  // "2026-11-16"
  // Of profiles: empty where there was none.
  std::map<std::string, OpTimes> ops;
  std::string ops_date;
  double node_seconds = 0;  // a node takes at least that: what starting one costs
  std::optional<double> watts;
  std::optional<int64_t> overhead_bytes;  // of a device's memory, for context and libraries

  // A ceiling is the best that was seen. One that is clearly higher says that something else was
  // running before: what was seen of the ops then is forgotten.
  void take_ceiling(const Ceiling& measured);
  // What a profile says of the ops, and the power that the device drew.
  void take_profile(const Ledger& ledger, std::optional<double> drawn);
};

struct MachineProfile {
  std::string device;     // for people
  std::string made_with;  // Millrace, libraries, driver: other ones, other times
  bool on_host = false;   // a CPU; else a device with memory of its own
  int64_t memory_bytes = 0;
  Precision usual = Precision::fp32;  // what it is fast in
  std::map<Precision, PrecisionProfile> precisions = {};

  const PrecisionProfile* find(Precision precision) const;
  std::string text() const;  // what parse_machine_profile reads
};

// Error where the text is not such a file; `name` is for the message.
MachineProfile parse_machine_profile(std::string_view text, const std::string& name);

// The file of a device's kind in the cache.
fs::path machine_profile_path(const Backend& backend);
// What the cache has of this device, made with the same versions; else an empty one. `note`, where
// given, gets why a file that is there is not taken.
MachineProfile recall_machine(const Backend& backend, std::string* note = nullptr);
// The same with a ceiling: measured now, in seconds, and remembered, where it is not known or where
// products of `seen` were faster.
MachineProfile measured_machine(Backend& backend, Precision precision,
                                const Ledger* seen = nullptr);
// Puts it there. A cache that cannot be written costs measuring again, nothing else.
void remember_machine(const MachineProfile& machine, const Backend& backend);

}  // namespace millrace
