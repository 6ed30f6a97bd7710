#include "train/auto_batch.h"

#include <algorithm>

#include "core/text.h"

namespace millrace {
namespace {

constexpr int64_t kLargest = 1 << 20;  // as the key allows

// Updates that batches of `sequences` per update make of this data.
struct Updates {
  double of_epoch, of_run;
};
Updates updates_of(const Settings& s, const Batches& batches, int64_t sequences) {
  const auto batch = static_cast<double>(s.batch_size), per_update = static_cast<double>(sequences);
  const double of_epoch = static_cast<double>(batches.positions_per_epoch()) /
                          static_cast<double>(batches.stride()) * batch / per_update;
  if (s.max_steps > 0) return {of_epoch, static_cast<double>(s.max_steps)};
  if (s.max_tokens == 0) return {of_epoch, of_epoch * static_cast<double>(s.num_epochs)};
  const double tokens_of_sequence = batches.mean_places() * batches.useful_share() / batch;
  return {of_epoch, static_cast<double>(s.max_tokens) / (tokens_of_sequence * per_update)};
}

// Why not this many sequences per update; empty: they are fine.
std::string too_few_updates(const Settings& s, const Batches& batches, int64_t sequences) {
  const Updates updates = updates_of(s, batches, sequences);
  auto text = [&](const char* what, double count, int64_t wanted) {
    return fmt::format("with {} sequences an update {} would be {} updates, fewer than {}",
                       with_commas(sequences), what, with_commas(static_cast<int64_t>(count)),
                       with_commas(wanted));
  };
  if (updates.of_epoch < kUpdatesOfEpoch)
    return text("an epoch", updates.of_epoch, kUpdatesOfEpoch);
  // A number of updates that was asked for is enough.
  if (s.max_steps == 0 && updates.of_run < kUpdatesOfRun)
    return text("the run", updates.of_run, kUpdatesOfRun);
  return "";
}

}  // namespace

std::vector<int64_t> auto_batches(int64_t effective_batch) {
  std::vector<int64_t> list;
  if (effective_batch > 0) {
    for (int64_t b = 1; b <= std::min(effective_batch, kLargest); ++b)
      if (effective_batch % b == 0) list.push_back(b);
    return list;
  }
  for (int64_t b = 1; b <= kLargest; b *= 2) {
    if (b >= 32) list.push_back(b / 4 * 3);
    list.push_back(b);
  }
  return list;
}

AutoBatch choose_batch(const Model& model, const Settings& settings, const TrainingData& data,
                       int64_t limit, Backend& backend) {
  auto list = auto_batches(settings.effective_batch);
  AutoBatch result{list.front(), ""};
  if (settings.effective_batch == 0) {
    size_t enough = 1;  // that leave enough updates; one sequence does as well as it can
    while (enough < list.size() &&
           (result.reason =
                too_few_updates(settings, *data.batches, list[enough] * settings.grad_accum))
               .empty())
      ++enough;
    list.resize(enough);
  } else {
    result.reason = fmt::format("training.effective_batch is {}", settings.effective_batch);
  }

  auto need_of = [&](int64_t batch, bool lean) {
    Settings with = settings;
    with.batch_size = batch;
    if (settings.effective_batch > 0) with.grad_accum = settings.effective_batch / batch;
    with.memory_limit = lean ? limit : 0;  // without a limit nothing is computed twice
    BatchShape shape = data.batches->shapes()[0];
    shape.batch = batch;
    return make_programs(model, with, shape, backend).needed_bytes();
  };
  const bool lean = need_of(list.front(), false) > limit;
  // Where the limit lies is guessed from a line through the last two: memory grows with the batch
  // evenly. Nothing far beyond the limit is planned, and a search takes three or four plans.
  struct Point {
    size_t at;
    int64_t need;
  };
  Point low{0, need_of(list.front(), lean)}, high{list.size(), 0};
  if (low.need > limit)
    return {list.front(), fmt::format("not even it fits in {}", human_bytes(limit))};
  for (double slope = 0; high.at - low.at > 1;) {
    size_t at = low.at + 1;
    while (slope > 0 && at + 1 < high.at &&
           static_cast<double>(low.need) +
                   slope * static_cast<double>(list[at + 1] - list[low.at]) <=
               static_cast<double>(limit))
      ++at;
    const int64_t need = need_of(list[at], lean);
    slope = static_cast<double>(need - low.need) / static_cast<double>(list[at] - list[low.at]);
    (need <= limit ? low : high) = {at, need};
  }
  result.batch = list[low.at];
  if (high.at < list.size())
    result.reason =
        fmt::format("{} would need {} of {}{}", with_commas(list[high.at]), human_bytes(high.need),
                    human_bytes(limit), lean ? "" : ", or compute parts twice");
  return result;
}

}  // namespace millrace
