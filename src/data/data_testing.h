// What tests of the data path share: files of their own, a cache of their own, and Errors caught.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/error_testing.h"
#include "data/dataset.h"

namespace millrace {

class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::path(testing::TempDir()) / fmt::format("millrace-data-{}-{}", getpid(), info->name());
    fs::remove_all(folder_);
    create_folders(folder_);
    setenv("MILLRACE_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("MILLRACE_CACHE");
    fs::remove_all(folder_);
  }

  std::string file(const std::string& name, std::string_view text) {
    const fs::path path = folder_ / name;
    create_folders(path.parent_path());
    write_file(path, text);
    return path.string();
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  struct Notes : DataObserver {
    std::vector<std::string> notes;
    void note(const std::string& text) override { notes.push_back(text); }
  };
  Dataset open(const DataOptions& options) { return open_dataset(options, notes_); }

  Notes notes_;
  fs::path folder_;
};

// The Error that `run` throws, which must say where and what to do.
template <typename Run>
ErrorFields refusal_of(Run run) {
  const ErrorFields fields = error_of(run);
  EXPECT_FALSE(fields.remedy.empty()) << fields.what;
  EXPECT_FALSE(fields.where.empty()) << fields.what;
  return fields;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<int32_t> ids_of(const Split& split) {
  std::vector<int32_t> ids(static_cast<size_t>(split.size()));
  if (!ids.empty()) split.tokens->read(split.begin, ids);
  return ids;
}

inline std::string text_of(const Dataset& data, const Split& split) {
  return data.tokenizer().decode(ids_of(split));
}

// A record's fields as text, without the end tokens.
inline std::vector<std::string> records_of(const Dataset& data, const Split& split) {
  std::vector<std::string> list;
  if (!split.tokens) return list;
  std::vector<int64_t> begins(static_cast<size_t>(split.tokens->records() + 1));
  split.tokens->record_begins(0, begins);
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(begins[i + 1] - begins[i]));
    split.tokens->read(begins[i], ids);
    list.push_back(data.tokenizer().decode(ids));
  }
  return list;
}

}  // namespace millrace
