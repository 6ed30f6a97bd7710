// The loader alone, for bench/run data: nothing trains, batches are only taken and summed.
//
//   millrace_loader EPOCHS CONFIG [a.b=c ...]    a line of JSON for every epoch
#include "data/loader.h"

#include <charconv>
#include <cstdio>
#include <numeric>

#include "cli/load.h"
#include "core/clock.h"
#include "core/error.h"

namespace millrace {
namespace {

void run_epochs(int64_t epochs, const RunRequest& request) {
  const int64_t start = now_ns();
  DataObserver nobody;
  const auto run = load_run(request, nobody);
  const Settings& s = run->settings;
  const Dataset& data = run->data.set;
  const Batches& batches = *run->data.batches;
  const int64_t sequences =
      data.records
          ? open_sequence_index(data, SplitName::train,
                                {s.max_length, s.data.chunking, s.data.chunk_overlap}, nobody)
                ->current()->size()
          : batches.positions_per_epoch();
  const double open_seconds = seconds_since(start);
  Loader loader(
      batches, 0, 1,
      {static_cast<int>(s.data.num_workers), 1, static_cast<int>(s.data.prefetch_factor)});
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const int64_t begin = now_ns();
    int64_t useful = 0, places = 0, sum = 0;
    for (int64_t i = 0; i < batches.batches_per_epoch(); ++i) {
      const UpdateBatches& update = loader.next();
      useful += update.useful;
      places += update.places;
      // Read, as a step would, and to be compared with what a peer has read.
      for (const Batch& batch : update.parts)
        sum = std::accumulate(batch.tokens.begin(), batch.tokens.end(), sum);
    }
    fmt::print(
        "{{\"open_s\": {}, \"made\": {}, \"epoch_s\": {}, \"sequences\": {}, \"useful\": {}, "
        "\"places\": {}, \"batches\": {}, \"sum\": {}}}\n",
        open_seconds, data.prepared.has_value(), seconds_since(begin), sequences, useful, places,
        batches.batches_per_epoch(), sum);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    int64_t epochs = 0;
    if (words.size() < 2 ||
        std::from_chars(words[0].data(), words[0].data() + words[0].size(), epochs).ec !=
            std::errc()) {
      std::fputs("usage: millrace_loader EPOCHS CONFIG [a.b=c ...]\n", stderr);
      return 2;
    }
    millrace::run_epochs(epochs, {words[1], {words.begin() + 2, words.end()}});
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
