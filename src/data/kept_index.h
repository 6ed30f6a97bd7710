// What the indexes beside the tokens of a split have in common: one is found in the cache or made,
// by one process while others wait, and made again when it turns out to be damaged.
#pragma once
#include <memory>

#include "data/checked_json.h"
#include "data/dataset.h"
#include "data/kept.h"
#include "data/sequence_index.h"

namespace millrace {

// Empty, to be put in place of `folder` when all is written.
inline fs::path new_staging_folder(const fs::path& folder) {
  const fs::path staging = folder.string() + ".making";
  if (fs::exists(staging)) remove_folder(staging);
  create_folders(staging);
  return staging;
}

// `open` gives the index of a folder that `make` has made; `same`: ranks that were counted in one
// are those of the other.
template <typename Index, typename Open, typename Make, typename Same>
std::unique_ptr<Kept<Index>> open_kept_index(const fs::path& folder, Open open, Make make,
                                             Same same, DataObserver& observer) {
  using Pointer = typename Kept<Index>::Pointer;
  auto find = [&]() -> Pointer {
    if (!fs::exists(folder)) return nullptr;
    try {
      return open();
    } catch (const Error& error) {
      observer.note(again_text(error));
      return nullptr;
    }
  };
  Pointer index = find();
  if (!index) {
    const CacheLock lock(folder, observer);
    index = find();
    if (!index) {
      make();
      index = open();
    }
  }
  auto make_again = [=, &observer](const Error& error, const Index& damaged) -> Pointer {
    const CacheLock lock(folder, observer);
    observer.note(again_text(error));
    make();
    Pointer made = open();
    if (!same(*made, damaged))
      throw damaged_cache(folder, "as many sequences as were made again", "another number");
    return made;
  };
  return std::make_unique<Kept<Index>>(index, make_again);
}

// Of lengths: how many, their sum, and some that increase.
nlohmann::json length_summary_json(const LengthSummary& summary);
LengthSummary length_summary_from(const CheckedJson& meta, const char* key);

}  // namespace millrace
