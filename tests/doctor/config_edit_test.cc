// Every config that comes with Millrace, and those of the first users' notes, edited: three keys
// change, and everything else is read as before.
#include "io/config_edit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "io/json_parser.h"
#include "io/unified_diff.h"
#include "model/model.h"
#include "train/settings.h"

namespace millrace {
namespace {

struct Configuration {
  Settings settings;
  std::unique_ptr<Model> model;
  Schema schema;
  explicit Configuration(const std::string& family) : model(make_model(family)) {
    settings.declare(schema);
    model->declare(schema);
  }
};

// The first family that takes this config, with it loaded.
std::unique_ptr<Configuration> loaded(const std::string& text, const std::string& name,
                                      std::string* family) {
  for (const std::string& candidate : model_families()) {
    if (!family->empty() && candidate != *family) continue;
    auto configuration = std::make_unique<Configuration>(candidate);
    try {
      configuration->schema.load_text(text, name);
    } catch (const Error&) {
      continue;
    }
    *family = candidate;
    return configuration;
  }
  return nullptr;
}

std::vector<fs::path> all_configs() {
  std::vector<fs::path> files;
  for (const char* folder : {"/configs", "/tests/seeds"})
    for (const auto& item : fs::directory_iterator(std::string(MILLRACE_SOURCE_DIR) + folder))
      if (item.is_regular_file() && item.path().extension() != ".sh") files.push_back(item.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Lines of `before` that the edit took away.
size_t lines_lost(const std::string& diff) {
  size_t lost = 0;
  for (size_t at = diff.find("\n@@"); at != std::string::npos; at = diff.find('\n', at + 1))
    lost += diff.compare(at, 2, "\n-") == 0 ? 1 : 0;
  return lost;
}

TEST(ConfigEditTest, EveryConfigKeepsWhatWasNotChanged) {
  const std::vector<ConfigChange> changes = {{"training.batch_size", "48", "was 1; +212 % +-3"},
                                             {"data.prefetch_factor", "7", "loader waits"},
                                             {"training.learning_rate", "1.25e-05", ""}};
  const std::vector<fs::path> files = all_configs();
  EXPECT_GT(files.size(), 35u);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const std::string text = read_file(file);
    std::string family;
    const auto before = loaded(text, "before", &family);
    ASSERT_NE(before, nullptr);
    const std::string edited = edit_config(text, changes, before->schema, "before");
    const auto after = loaded(edited, "after", &family);
    ASSERT_NE(after, nullptr) << edited;
    for (const ConfigChange& change : changes)
      before->schema.override_with(change.path + "=" + change.value);
    for (const std::string& path : before->schema.paths()) {
      EXPECT_EQ(after->schema.value_text(path), before->schema.value_text(path)) << path;
      EXPECT_EQ(after->schema.was_set(path), before->schema.was_set(path)) << path;
    }
    EXPECT_EQ(after->schema.alternative_names(), before->schema.alternative_names());
    // Only lines of these keys go, and in JSON one more may get a comma.
    const bool is_json = file.extension() == ".json";
    EXPECT_LE(lines_lost(unified_diff(text, edited, "before", "after")), is_json ? 4u : 3u)
        << edited;
    if (is_json) {
      EXPECT_NO_THROW(parse_json(edited)) << edited;
    } else {
      EXPECT_NE(edited.find("# millrace doctor: was 1; +212 % +-3"), std::string::npos) << edited;
    }
  }
}

}  // namespace
}  // namespace millrace
