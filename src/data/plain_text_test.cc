#include "data/plain_text.h"

#include "data/data_testing.h"

namespace millrace {
namespace {

class PlainTextTest : public DataTest {};

TEST_F(PlainTextTest, MarksAndLineEndsOfWindowsGo) {
  struct Row {
    std::string bytes, text;
    int64_t line_ends;
    bool mark;
  };
  const std::string mark = "\xEF\xBB\xBF";
  for (const Row& row :
       {Row{"", "", 0, false}, Row{"a\nb", "a\nb", 0, false}, Row{"a\r\nb\r\n", "a\nb\n", 2, false},
        Row{mark + "a\r\n", "a\n", 1, true}, Row{mark, "", 0, true},
        // Only at the start, and only before LF.
        Row{"a" + mark + "\rb\r", "a" + mark + "\rb\r", 0, false},
        Row{"\r\r\n\r\n\n\r", "\r\n\n\n\r", 2, false}}) {
    const std::string path = file("a.txt", row.bytes);
    // However it is cut into reads.
    for (const size_t size : {size_t{3}, size_t{4}, size_t{5}, size_t{64}}) {
      PlainText text(path);
      std::string all, piece(size, '?');
      for (size_t got = size; got == size;) {
        got = text.read(piece);
        all.append(piece, 0, got);
      }
      EXPECT_EQ(all, row.text) << size;
      EXPECT_EQ(text.line_ends(), row.line_ends) << size;
      EXPECT_EQ(text.had_mark(), row.mark) << size;
    }
    EXPECT_EQ(is_plain_text(path), row.line_ends == 0 && !row.mark) << row.bytes;
  }
}

TEST_F(PlainTextTest, TheSameTextFromAnySystemIsTheSameTokens) {
  std::string unix_text, windows_text;
  for (int i = 0; i < 60'000; ++i) {  // several blocks, which end anywhere
    const std::string line = "line " + std::to_string(i) + " of é";
    unix_text += line + "\n";
    windows_text += line + "\r\n";
  }
  const std::string plain = file("unix.txt", unix_text), windows = file("crlf.txt", windows_text),
                    marked = file("mark.txt", "\xEF\xBB\xBF" + windows_text);
  for (const char* kind : {"char", "word"}) {
    auto opened = [&](const std::string& path) {
      DataOptions options{.train = {path}};
      options.tokenizer.kind = kind;
      return open(options);
    };
    notes_.notes.clear();
    const Dataset data = opened(plain);
    EXPECT_TRUE(notes_.notes.empty());
    const auto ids = ids_of(data.train);
    for (const std::string& path : {windows, marked}) {
      notes_.notes.clear();
      const Dataset other = opened(path);
      EXPECT_EQ(ids_of(other.train), ids) << path;
      EXPECT_EQ(other.vocab_size, data.vocab_size) << path;
      ASSERT_EQ(notes_.notes.size(), 1u) << path;
      EXPECT_TRUE(has(notes_.notes[0], "60,000 line ends")) << notes_.notes[0];
      EXPECT_EQ(has(notes_.notes[0], "mark"), path == marked) << notes_.notes[0];
    }
  }
  // Bytes stay bytes.
  DataOptions bytes{.train = {marked}};
  bytes.tokenizer.kind = "byte";
  bytes.validation_fraction = 0;
  EXPECT_EQ(open(bytes).train.size(), std::ssize(windows_text) + 3);
}

}  // namespace
}  // namespace millrace
