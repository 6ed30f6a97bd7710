// tokenizer.json of several kinds against the PyPI package `tokenizers` (make_tokenizers.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "data/tokenizer.h"

namespace millrace {
namespace {

TEST(GoldenTokenizers, SameIdsAndTexts) {
  const auto file = nlohmann::json::parse(
      read_file(fs::path(MILLRACE_SOURCE_DIR) / "tests" / "golden" / "tokenizers.json"));
  ASSERT_EQ(file["styles"].size(), 8u);
  for (const auto& [style, golden] : file["styles"].items()) {
    SCOPED_TRACE(style);
    const auto tokenizer = tokenizer_from_json(golden["file"].dump(), style);
    ASSERT_FALSE(golden["cases"].empty());
    for (const auto& one : golden["cases"]) {
      const auto text = one[0].get<std::string>();
      SCOPED_TRACE(text);
      std::vector<int32_t> ids;
      tokenizer->encode(text, {"test"}, ids);
      EXPECT_EQ(ids, one[1].get<std::vector<int32_t>>());
      EXPECT_EQ(tokenizer->decode(ids), one[2].get<std::string>());
      // In two parts where it may be cut, and shown token by token as generating does.
      std::vector<int32_t> parts;
      const size_t cut = tokenizer->last_cut(text);
      tokenizer->encode(std::string_view(text).substr(0, cut), {"test"}, parts);
      tokenizer->encode(std::string_view(text).substr(cut), {"test"}, parts);
      EXPECT_EQ(parts, ids) << "cut at " << cut;
      std::string shown = ids.empty() ? "" : tokenizer->decode({ids.data(), 1});
      for (size_t i = 1; i < ids.size(); ++i) shown += tokenizer->token_text(ids[i]);
      EXPECT_EQ(shown, tokenizer->decode(ids));
    }
  }
}

}  // namespace
}  // namespace millrace
