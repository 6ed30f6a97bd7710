#include "data/dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <thread>

#include "data/data_testing.h"
#include "data/grammar.h"

namespace millrace {
namespace {

using DatasetTest = DataTest;
using Texts = std::vector<std::string>;

// As if it had been written long ago: a stamp of just now is not taken on trust.
void age(const std::string& path, int64_t seconds = 100) {
  timespec times[2];
  clock_gettime(CLOCK_REALTIME, &times[0]);
  times[0].tv_sec -= seconds;
  times[1] = times[0];
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST_F(DatasetTest, PackedFiles) {
  const unsigned char packed[] = {0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
                                  0x02, 0x03, 0x4B, 0x4F, 0x4D, 0x55, 0x00, 0x00,
                                  0x47, 0xA6, 0x4D, 0xEA, 0x04, 0x00, 0x00, 0x00};
  const std::string_view bytes(reinterpret_cast<const char*>(packed), sizeof packed);
  file("in/a.txt", "ay ");
  file("in/b.txt.gz", bytes);
  file("in/c.gz", bytes);  // not a text by its name, but it may be given
  auto read = [&](const Texts& paths) {
    const Dataset data = open({.train = paths, .validation_fraction = 0});
    return text_of(data, data.train);
  };
  EXPECT_EQ(read({path("in")}), "ay gee ");
  EXPECT_EQ(read({path("in/c.gz")}), "gee ");
  file("in/b.txt.gz", bytes.substr(0, bytes.size() - 3));
  EXPECT_TRUE(has(refusal_of([&] { read({path("in")}); }).where, "b.txt.gz"));
}

TEST_F(DatasetTest, FileFolderPatternAndList) {
  file("in/b.txt", "bee ");
  file("in/a.txt", "ay ");
  file("in/c.md", "sea ");
  file("in/deeper/d.txt", "dee ");
  file("in/e.txt", "");
  create_folders(folder_ / "in/folder.txt");
  auto read = [&](const Texts& paths) {
    const Dataset data = open({.train = paths, .validation_fraction = 0});
    return text_of(data, data.train);
  };
  EXPECT_EQ(read({path("in/c.md")}), "sea ");
  EXPECT_EQ(read({path("in")}), "ay bee ");
  EXPECT_EQ(read({path("in/?.*")}), "ay bee sea ");
  EXPECT_EQ(read({path("in/*/*.txt")}), "dee ");
  EXPECT_EQ(read({path("in/c.md"), path("in"), path("in/[b]*")}), "sea ay bee bee ");
  EXPECT_EQ(read({file("what?.txt", "x")}), "x");  // a name that looks like a pattern
}

TEST_F(DatasetTest, FaultsNameThePath) {
  const std::string empty = file("empty.txt", "");
  create_folders(folder_ / "bare");
  file("hollow/a.txt", "");
  const std::string bad[] = {path("missing.txt"), empty,           path("bare"),
                             path("hollow"),      path("bare/*"),  path("bar?"),
                             "/dev/null",         "builtin:poems", "builtin:grammar "};
  for (const std::string& name : bad) {
    const ErrorFields e = refusal_of([&] { open({.train = {name}}); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_TRUE(has(e.what, name)) << e.what;
    EXPECT_EQ(e.where, "data.train");
  }
  EXPECT_EQ(refusal_of([&] { open({.train = {}}); }).code, ErrorCode::config);
  EXPECT_EQ(refusal_of([&] { open({.train = {""}}); }).code, ErrorCode::config);
  EXPECT_FALSE(fs::exists(folder_ / "cache")) << "a refusal leaves nothing behind";
}

TEST_F(DatasetTest, CutsValidationFromTheEndOfALongText) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('0' + i / 10);
  const Dataset data = open({.train = {file("a.txt", text)}, .validation_fraction = 0.25});
  EXPECT_EQ(data.vocab_size, 10);  // 9 stands in the validation part only
  EXPECT_EQ(text_of(data, data.train), text.substr(0, 75));
  EXPECT_EQ(text_of(data, data.validation), text.substr(75));
  EXPECT_FALSE(data.entropy_per_token.has_value());
  EXPECT_TRUE(has(data.description(), "75 training and 25 validation")) << data.description();
}

TEST_F(DatasetTest, ValidationOfItsOwn) {
  DataOptions options{.train = {file("a.txt", "abcabc")}, .validation = {file("b.txt", "cba")}};
  const Dataset data = open(options);
  EXPECT_EQ(ids_of(data.train), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(ids_of(data.validation), (std::vector<int32_t>{2, 1, 0}));
  options.validation.push_back(file("c.txt", "ab\nc"));
  const ErrorFields e = refusal_of([&] { open(options); });
  EXPECT_TRUE(has(e.where, "c.txt:1:3")) << e.where;
}

TEST_F(DatasetTest, MaxCharsCountsCharacters) {
  DataOptions options{.train = {file("a.txt", "\u00E9\u6C34a"), file("b.txt", "\u00E9bc")},
                      .validation_fraction = 0};
  const auto decoded = [&](int64_t max_chars) {
    options.max_chars = max_chars;
    const Dataset data = open(options);
    return text_of(data, data.train);
  };
  EXPECT_EQ(decoded(0), "\u00E9\u6C34a\u00E9bc");
  EXPECT_EQ(decoded(1), "\u00E9");
  EXPECT_EQ(decoded(3), "\u00E9\u6C34a");
  EXPECT_EQ(decoded(4), "\u00E9\u6C34a\u00E9");
  EXPECT_EQ(decoded(99), "\u00E9\u6C34a\u00E9bc");
  options.tokenizer.kind = "byte";
  EXPECT_EQ(decoded(1), "\xC3");
  EXPECT_EQ(decoded(7), "\u00E9\u6C34a\xC3");
}

TEST_F(DatasetTest, NotUtf8NamesThePlace) {
  DataOptions options{.train = {file("a.txt", "fine\n"), file("b.txt", "x\ny\xFF")},
                      .validation_fraction = 0};
  const ErrorFields e = refusal_of([&] { open(options); });
  EXPECT_EQ(e.where, path("b.txt") + ":2:2 (byte 3)");
  options.tokenizer.kind = "byte";
  EXPECT_EQ(open(options).train.size(), 9);
}

// Whatever reads it: a tokenizer that took bytes for characters would train on them without a word.
TEST_F(DatasetTest, EveryTokenizerButBytesWantsUtf8) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += fmt::format("the number {} is written\n", i);
  const std::string good = file("good.txt", lines), bad = file("bad.txt", lines + "caf\xE9 noir\n");
  const std::string learned =
      open({.train = {good}, .format = "lines", .tokenizer = {.kind = "word"}}).folder /
      "tokenizer.json";
  for (const std::string format : {"text", "lines"})
    for (const std::string& kind : {std::string("word"), std::string("bpe"), std::string("unigram"),
                                    std::string("char"), learned}) {
      SCOPED_TRACE(format + " " + kind);
      DataOptions options{
          .train = {bad}, .format = format, .tokenizer = {.kind = kind, .vocab_size = 320}};
      const ErrorFields e = refusal_of([&] { open(options); });
      EXPECT_EQ(e.what, "the text is not UTF-8");
      EXPECT_EQ(e.where, fmt::format("{}:301:4 (byte {})", bad, lines.size() + 3));
      EXPECT_EQ(e.got, "bytes E9 20 6E 6F");
      EXPECT_EQ(e.code, ErrorCode::config);
      if (format == "text") continue;
      options.skip_bad_records = true;
      const Dataset data = open(options);
      EXPECT_EQ(data.counts.bad, 1);
      EXPECT_TRUE(has(data.counts.first_bad, "bad.txt:301:4")) << data.counts.first_bad;
    }
  // Bytes are bytes, also where the tokenizer is a file.
  const std::string bytes =
      open({.train = {good}, .tokenizer = {.kind = "byte"}}).folder / "tokenizer.json";
  for (const std::string& kind : {std::string("byte"), bytes})
    for (const std::string format : {"text", "lines"})
      EXPECT_EQ(open({.train = {bad}, .format = format, .tokenizer = {.kind = kind}}).counts.bad,
                0);
}

TEST_F(DatasetTest, ABadCharacterIsReportedWhereItStands) {
  const DataOptions files{.train = {file("a.en", "one\ntwo\n")},
                          .train_target = {file("a.de", "eins\nzw\xF6lf\n")},
                          .validation_fraction = 0};
  EXPECT_EQ(refusal_of([&] { open(files); }).where, path("a.de") + ":2:3 (byte 7)");
  // As it stands in the file: quotes are doubled there, and other columns stand before.
  const DataOptions csv{.train = {file("a.csv",
                                       "id,q,a\n"
                                       "7,one,1\n"
                                       "8,\"two\nlines\",\"\"\"x\"\" \n\"\"y\"\" \xE9\"\n")},
                        .fields = {"a", "q"},
                        .validation_fraction = 0};
  EXPECT_EQ(refusal_of([&] { open(csv); }).where, path("a.csv") + ":5:7 (byte 43)");
  // The same for a character that only the tokenizer refuses.
  const DataOptions unknown{.train = {file("b.csv", "q,a\nx,y\n")},
                            .validation = {file("c.csv", "q,a\nx,\"y\ny\"\nx,z\n")},
                            .fields = {"q", "a"}};
  EXPECT_EQ(refusal_of([&] { open(unknown); }).where, path("c.csv") + ":2:5 (byte 8)");
}

TEST_F(DatasetTest, Utf16IsNamed) {
  const std::string little("\xFF\xFEt\0e\0x\0t\0\n\0h\0i\0\n\0", 18);
  DataOptions options{.validation_fraction = 0, .skip_bad_records = true};
  for (const std::string name : {"a.txt", "a.csv", "a.tsv", "a.jsonl"})
    for (const std::string format : {"auto", "lines"}) {
      options.train = {file(name, little)};
      options.format = format;
      const ErrorFields e = refusal_of([&] { open(options); });
      EXPECT_EQ(e.what, "the file is UTF-16");
      EXPECT_EQ(e.where, path(name) + ":1:1 (byte 0)");
      EXPECT_TRUE(has(e.remedy, "iconv")) << e.remedy;
    }
  EXPECT_EQ(open({.train = {path("a.txt")}, .tokenizer = {.kind = "byte"}}).counts.bad, 0);
}

// Longer than any buffer, so that pieces are cut and joined: the tokens are those of the whole.
TEST_F(DatasetTest, LongTextsAreCutWithoutATrace) {
  std::string text;
  while (text.size() < 3'000'000) text += "h\u00E9llo \u6C34\U0001F600 x\n";
  const Dataset data = open({.train = {file("a.txt", text)}, .validation_fraction = 0});
  EXPECT_TRUE(text_of(data, data.train) == text);
  text[2'500'000] = '\xFF';
  const ErrorFields e = refusal_of([&] { open({.train = {file("b.txt", text)}}); });
  EXPECT_TRUE(has(e.where, "(byte ")) << e.where;
  const auto line = 1 + std::count(text.begin(), text.begin() + 2'500'000, '\n');
  EXPECT_TRUE(has(e.where, fmt::format("b.txt:{}:", line))) << e.where << " is not line " << line;
}

TEST_F(DatasetTest, BadOptions) {
  const std::string text = file("a.txt", "0123456789");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double fraction : {-0.1, 1.0, nan, HUGE_VAL})
    EXPECT_EQ(refusal_of([&] { open({.train = {text}, .validation_fraction = fraction}); }).where,
              "data.validation_fraction");
  auto where = [&](DataOptions options) { return refusal_of([&] { open(options); }).where; };
  EXPECT_EQ(where({.train = {text}, .tokenizer = {.kind = "ngram"}}), "data.tokenizer");
  EXPECT_EQ(where({.train = {text}, .tokenizer = {.kind = "nowhere.json"}}), "data.tokenizer");
  EXPECT_EQ(where({.train = {text}, .max_chars = -1}), "data.max_chars");
  EXPECT_EQ(where({.train = {kBuiltinGrammar}, .grammar_chars = 0}), "data.grammar_chars");
  EXPECT_EQ(where({.train = {kBuiltinGrammar}, .validation = {text}}), "data.validation");
  EXPECT_EQ(where({.train = {kBuiltinGrammar, text}}), "data.train");
  EXPECT_EQ(where({.train = {text}, .validation = {kBuiltinGrammar}}), "data.validation");
  EXPECT_EQ(where({.train = {text}, .format = "xml"}), "data.format");
  EXPECT_EQ(where({.train = {text}, .fields = {"text"}}), "data.fields");
  EXPECT_EQ(where({.train = {text}, .test_fraction = 0.1}), "data.test_fraction");
  EXPECT_EQ(where({.train = {text}, .train_target = {text, text}}), "data.train_target");
  EXPECT_EQ(refusal_of([&] {
              open({.train = {kBuiltinGrammar}, .tokenizer = {.kind = "chars"}});
            }).remedy,
            "did you mean `char`?");
}

TEST_F(DatasetTest, Grammar) {
  for (const std::string tokenizer : {"char", "byte"}) {
    const Dataset data = open({.train = {kBuiltinGrammar},
                               .validation_fraction = 0.2,
                               .tokenizer = {.kind = tokenizer},
                               .grammar_chars = 20'000,
                               .seed = 4});
    const std::string train = text_of(data, data.train);
    const std::string validation = text_of(data, data.validation);
    EXPECT_EQ(train, grammar_stories(4, 20'000));
    EXPECT_GE(validation.size(), 4'000u);
    EXPECT_EQ(train.find(validation.substr(0, validation.find('\n'))), std::string::npos);
    EXPECT_EQ(data.entropy_per_token, grammar_entropy_per_char());
  }
  const auto vocabulary = [&](uint64_t seed, int64_t chars) {
    return open({.train = {kBuiltinGrammar}, .grammar_chars = chars, .seed = seed})
        .tokenizer()
        .file()
        .bytes;
  };
  EXPECT_EQ(vocabulary(1, 100), vocabulary(2, 10'000)) << "it does not depend on the draw";
}

// --- records

TEST_F(DatasetTest, LinesAreRecords) {
  const Dataset data = open({.train = {file("a.txt", "one\r\n\ntwo\nthree")},
                             .validation = {file("b.txt", "two\n")},
                             .format = "lines"});
  EXPECT_TRUE(data.records);
  EXPECT_EQ(records_of(data, data.train), (Texts{"one", "two", "three"}));
  EXPECT_EQ(records_of(data, data.validation), (Texts{"two"}));
  EXPECT_EQ(data.counts.empty, 1);
  EXPECT_EQ(data.end_id, data.vocab_size - 1) << "what a record ends with comes last";
  EXPECT_EQ(ids_of(data.validation).back(), data.end_id);
}

TEST_F(DatasetTest, FieldsByName) {
  const Texts pairs = {"q, 1\nx", "a\"1\"", "q2", "a2"};
  const Dataset csv = open({.train = {file("a.csv",
                                           "id,answer,question\n"
                                           "7,\"a\"\"1\"\"\",\"q, 1\nx\"\n8,a2,q2\n")},
                            .fields = {"question", "answer"},
                            .validation_fraction = 0});
  EXPECT_EQ(csv.fields, 2);
  EXPECT_EQ(records_of(csv, csv.train), pairs);
  const Dataset tsv = open({.train = {file("a.tsv", "question\tanswer\nq2\ta2\n")},
                            .fields = {"question", "answer"},
                            .validation_fraction = 0});
  EXPECT_EQ(records_of(tsv, tsv.train), (Texts{"q2", "a2"}));
  const Dataset jsonl =
      open({.train = {file("a.jsonl",
                           "{\"m\": {\"question\": \"q, 1\\nx\"}, \"answer\": \"a\\\"1\\\"\"}\n"
                           "{\"answer\": \"a2\", \"m\": {\"question\": \"q2\"}}\n")},
            .fields = {"m.question", "answer"},
            .validation_fraction = 0});
  EXPECT_EQ(records_of(jsonl, jsonl.train), pairs);
  const Dataset text =
      open({.train = {file("b.jsonl", "{\"text\": \"x\"}")}, .validation_fraction = 0});
  EXPECT_EQ(records_of(text, text.train), Texts{"x"});
  const ErrorFields e = refusal_of([&] { open({.train = {path("a.csv")}, .fields = {"anwser"}}); });
  EXPECT_EQ(e.where, path("a.csv") + ":1");
  EXPECT_EQ(e.remedy, "did you mean `answer`?");
}

TEST_F(DatasetTest, PairsOfFiles) {
  DataOptions options{.train = {file("a.en", "one\ntwo\n")},
                      .train_target = {file("a.de", "eins\nzwei\n")},
                      .validation_fraction = 0};
  const Dataset data = open(options);
  EXPECT_EQ(data.fields, 2);
  EXPECT_EQ(records_of(data, data.train), (Texts{"one", "eins", "two", "zwei"}));
  file("a.de", "eins\nzwei\ndrei\n");
  const ErrorFields e = refusal_of([&] { open(options); });
  EXPECT_EQ(e.where, path("a.en"));
  EXPECT_EQ(e.got, "2 lines");
}

TEST_F(DatasetTest, BadRecordsEndTheRunOrArePassedOver) {
  DataOptions options{.train = {file("a.csv", "text,x\none,1\ntwo\nthree,3\n\"fo\"ur,4\nfive,5\n")},
                      .validation_fraction = 0};
  ErrorFields e = refusal_of([&] { open(options); });
  EXPECT_EQ(e.where, path("a.csv") + ":3 (byte 13)");
  EXPECT_EQ(e.code, ErrorCode::config);
  options.skip_bad_records = true;
  const Dataset data = open(options);
  EXPECT_EQ(records_of(data, data.train), (Texts{"one", "three", "five"}));
  EXPECT_EQ(data.counts.bad, 2);
  EXPECT_TRUE(has(data.counts.first_bad, "a.csv:3")) << data.counts.first_bad;
  // A file that cannot be read on is no bad record.
  const unsigned char packed[] = {0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x4B};
  options.train = {file("b.csv.gz", {reinterpret_cast<const char*>(packed), sizeof packed})};
  e = refusal_of([&] { open(options); });
  EXPECT_TRUE(has(e.where, "b.csv.gz")) << e.where;
}

TEST_F(DatasetTest, FilesOfASplitThatHoldNothingAreNamed) {
  const std::string header = file("header.csv", "text,note\n"),
                    blank = file("blank.csv", "text,note\n ,1\n\"\",2\n"),
                    bad = file("bad.csv", "text,note\n1\n2\n"),
                    good = file("good.csv", "text\nx\n");
  for (const std::string kind : {"char", "word", "bpe", "byte"}) {
    SCOPED_TRACE(kind);
    DataOptions options{.train = {header}, .tokenizer = {.kind = kind, .min_frequency = 1}};
    ErrorFields e = refusal_of([&] { open(options); });
    EXPECT_EQ(e.what, "nothing to read in " + header);
    EXPECT_EQ(e.where, "data.train");
    EXPECT_EQ(e.got, "none");
    options.train = {blank, header};
    e = refusal_of([&] { open(options); });
    EXPECT_EQ(e.what, "nothing to read in " + blank + " and 1 other file");
    EXPECT_EQ(e.got, "none; 2 are empty");
    options.train = {bad};
    options.skip_bad_records = true;
    e = refusal_of([&] { open(options); });
    EXPECT_EQ(e.got, "none; 2 bad ones were passed over");
    EXPECT_TRUE(has(e.remedy, "data.on_bad_record=error"));
  }
  EXPECT_EQ(refusal_of([&] { open({.train = {good}, .validation = {header}}); }).where,
            "data.validation");
  EXPECT_EQ(refusal_of([&] { open({.train = {good}, .test = {header}}); }).where, "data.test");
  EXPECT_EQ(
      refusal_of([&] { open({.train = {good}, .test = {header}, .validation_fraction = 0}); }).what,
      "nothing to read in " + header);
  const ErrorFields e = refusal_of(
      [&] { open({.train = {file("l.txt", "long\n")}, .format = "lines", .max_chars = 2}); });
  EXPECT_EQ(e.got, "none; the first is longer than data.max_chars 2");
  // A packed file of nothing is not empty on disk.
  const unsigned char packed[] = {0x1F, 0x8B, 0x08, 0, 0, 0, 0, 0, 0x02, 0x03,
                                  0x03, 0x00, 0,    0, 0, 0, 0, 0, 0,    0};
  const std::string hollow =
      file("hollow.txt.gz", {reinterpret_cast<const char*>(packed), sizeof packed});
  EXPECT_EQ(refusal_of([&] { open({.train = {hollow}}); }).what, "nothing to read in " + hollow);
  const std::string paths = file("paths.txt", "0 1 2 3\n10 1 2 3\n"), none = file("none.txt", "\n");
  EXPECT_EQ(refusal_of([&] {
              open({.train = {paths}, .validation = {none}, .format = "trajectories"});
            }).what,
            "no path in " + none);
}

TEST_F(DatasetTest, AFieldIsOneColumn) {
  const std::string twice = file("twice.csv", "dialogue,note,note\na,b,c\n");
  const ErrorFields e = refusal_of([&] {
    open({.train = {twice}, .fields = {"dialogue", "note"}});
  });
  EXPECT_EQ(e.what, "two columns are called `note`");
  EXPECT_EQ(e.where, twice + ":1");
  EXPECT_EQ(e.got, "columns 2 and 3 of dialogue, note, note");
  EXPECT_EQ(
      open({.train = {twice}, .fields = {"dialogue"}, .validation_fraction = 0}).counts.records[0],
      1)
      << "nobody asks for the other two";
  EXPECT_EQ(refusal_of([&] {
              open({.train = {twice}, .fields = {"dialogue", "dialogue"}});
            }).where,
            "data.fields");
}

// What a tokenizer gives back may be another text: in lower case, spaced again.
TEST_F(DatasetTest, TargetsThatAreValidatedKeepTheirText) {
  const Dataset data =
      open({.train = {file("a.csv", "q,a\none,One\ntwo,Two\n")},
            .validation = {file("b.csv", "q,a\ntwo,\"Two , \u00E9\"\none,one\n")},
            .fields = {"q", "a"},
            .tokenizer = {.kind = "word", .min_frequency = 1, .lower_case = true}});
  EXPECT_EQ(data.train.target_texts, nullptr);
  const TokenArray& texts = *data.validation.target_texts;
  ASSERT_EQ(texts.records(), 2);
  std::vector<int64_t> begins(3);
  texts.record_begins(0, begins);
  std::vector<int32_t> bytes(static_cast<size_t>(texts.tokens()));
  texts.read(0, bytes);
  const std::string all(bytes.begin(), bytes.end());
  EXPECT_EQ(all.substr(0, static_cast<size_t>(begins[1])), "Two , \u00E9");
  EXPECT_EQ(all.substr(static_cast<size_t>(begins[1])), "one");
}

TEST_F(DatasetTest, APairWithOneSideIsABadRecord) {
  DataOptions csv{.train = {file("a.csv", "q,a\n\"one\nmore\",1\ntwo, \n\"\",\"\"\n,3\nfour,4\n")},
                  .fields = {"q", "a"},
                  .validation_fraction = 0};
  ErrorFields e = refusal_of([&] { open(csv); });
  EXPECT_EQ(e.what, "a pair without a target");
  EXPECT_EQ(e.where, path("a.csv") + ":4");
  EXPECT_EQ(e.got, "an empty field `a`");
  EXPECT_EQ(e.code, ErrorCode::config);
  DataOptions lines{.train = {file("a.en", "one\ntwo\n\n\nfive\n")},
                    .train_target = {file("a.de", "eins\nzwei\n\nvier\n\n")},
                    .validation_fraction = 0};
  e = refusal_of([&] { open(lines); });
  EXPECT_EQ(e.what, "a pair without a source");
  EXPECT_EQ(e.where, path("a.en") + ":4");
  lines.train = {file("b.en", "one\ntwo\n\nfour\nfive\n")};
  e = refusal_of([&] { open(lines); });
  EXPECT_EQ(e.where, path("a.de") + ":5");
  EXPECT_EQ(e.got, "an empty line");
  // Passed over: bad ones have one side, empty ones none.
  csv.skip_bad_records = lines.skip_bad_records = true;
  const Dataset rows = open(csv);
  EXPECT_EQ(records_of(rows, rows.train), (Texts{"one\nmore", "1", "four", "4"}));
  EXPECT_EQ(rows.counts.bad, 2);
  EXPECT_EQ(rows.counts.empty, 1);
  EXPECT_TRUE(has(rows.counts.first_bad, "a.csv:4")) << rows.counts.first_bad;
  const Dataset pairs = open(lines);
  EXPECT_EQ(records_of(pairs, pairs.train), (Texts{"one", "eins", "two", "zwei", "four", "vier"}));
  EXPECT_EQ(pairs.counts.bad, 1);
  EXPECT_EQ(pairs.counts.empty, 1);
}

TEST_F(DatasetTest, RecordsAreDrawnIntoSplitsByTheSeed) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += fmt::format("line {}\n", i);
  DataOptions options{.train = {file("a.txt", lines)},
                      .format = "lines",
                      .validation_fraction = 0.2,
                      .test_fraction = 0.1,
                      .seed = 7};
  const Dataset data = open(options);
  Texts all = records_of(data, data.train);
  const Texts validation = records_of(data, data.validation), test = records_of(data, data.test);
  // 2000 draws: standard deviations 17.9 and 13.4.
  EXPECT_NEAR(static_cast<double>(validation.size()), 400, 5 * 17.9);
  EXPECT_NEAR(static_cast<double>(test.size()), 200, 5 * 13.4);
  all.insert(all.end(), validation.begin(), validation.end());
  all.insert(all.end(), test.begin(), test.end());
  EXPECT_EQ(all.size(), 2000u);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 2000u) << "each once";
  const Dataset threads = open({.train = options.train,
                                .format = "lines",
                                .validation_fraction = 0.2,
                                .test_fraction = 0.1,
                                .seed = 7,
                                .threads = 7});
  EXPECT_EQ(threads.key, data.key);
  options.seed = 8;
  const Dataset other = open(options);
  EXPECT_NE(records_of(other, other.validation), validation);
}

TEST_F(DatasetTest, LimitsOfRecords) {
  DataOptions options{.train = {file("a.txt", "aa\nbb\ncc\ndd\n"), file("b.txt", "ee\n")},
                      .validation = {file("v.txt", "aa\nbb\n")},
                      .format = "lines"};
  options.max_records = 2;
  Dataset data = open(options);
  EXPECT_EQ(records_of(data, data.train), (Texts{"aa", "bb"}));
  EXPECT_EQ(records_of(data, data.validation), (Texts{"aa", "bb"}));
  options.max_records = 0;
  options.max_chars = 5;
  data = open(options);
  EXPECT_EQ(records_of(data, data.train), (Texts{"aa", "bb"}))
      << "a record that does not fit is left out";
}

TEST_F(DatasetTest, TokensThatOthersMade) {
  const std::vector<uint16_t> ids = {5, 6, 7, 8, 9, 10, 11, 12};
  const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), 16);
  DataOptions options{.train = {file("a.bin", bytes)},
                      .validation_fraction = 0.25,
                      .tokenizer = {.kind = "ids", .vocab_size = 13}};
  const Dataset data = open(options);
  EXPECT_EQ(ids_of(data.train), (std::vector<int32_t>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(ids_of(data.validation), (std::vector<int32_t>{11, 12}));
  EXPECT_EQ(text_of(data, data.validation), "11 12");
  options.tokenizer.vocab_size = 12;
  EXPECT_TRUE(has(refusal_of([&] { open(options); }).where, "a.bin")) << "12 is no id";
  options.tokenizer.kind = "char";
  EXPECT_EQ(refusal_of([&] { open(options); }).where, "data.tokenizer");
}

TEST_F(DatasetTest, RareWordsAreStoredAndReadAsUnknown) {
  const Dataset data = open({.train = {file("a.txt", "a b a c\na b d\n")},
                             .format = "lines",
                             .validation_fraction = 0,
                             .tokenizer = {.kind = "word", .vocab_size = 5, .min_frequency = 1}});
  EXPECT_EQ(data.vocab_size, 5);  // <unk>, <s>, </s>, a, b
  EXPECT_EQ(ids_of(data.train), (std::vector<int32_t>{3, 4, 3, 0, 2, 3, 4, 0, 2}));
  std::vector<int32_t> open_ids(9);
  data.train.open->read(0, open_ids);
  EXPECT_EQ(open_ids, (std::vector<int32_t>{3, 4, 3, 5, 2, 3, 4, 6, 2}));
}

TEST_F(DatasetTest, PiecesAreLearnedFromTheData) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += fmt::format("the number {} is written\n", i * 7919 % 1000);
  for (const std::string kind : {"bpe", "unigram"}) {
    const DataOptions options{.train = {file("a.txt", lines)},
                              .format = "lines",
                              .validation_fraction = 0,
                              .tokenizer = {.kind = kind, .vocab_size = 320}};
    const Dataset data = open(options);
    EXPECT_EQ(data.vocab_size, 320);
    EXPECT_EQ(records_of(data, data.train)[2], "the number 838 is written");
    if (kind == "bpe") {
      EXPECT_LT(data.train.size(), std::ssize(lines) / 2) << "words are pieces";
    }
  }
}

TEST_F(DatasetTest, Trajectories) {
  std::string table;
  for (int agent = 1; agent <= 40; ++agent)
    for (int frame = 0; frame < agent + 1; ++frame)
      table += fmt::format("{}\t{}\t{}.5\t{}\n", frame * 10, agent, agent, frame);
  const Dataset data = open({.train = {file("scene.txt", table)}, .format = "trajectories"});
  ASSERT_TRUE(data.has_trajectories());
  const ValueStore& store = *data.trajectories[0];
  EXPECT_EQ(store.channels(), 2);
  EXPECT_EQ(store.paths() + data.trajectories[1]->paths(), 40);
  std::vector<int64_t> begins(static_cast<size_t>(store.paths() + 1));
  store.path_begins(0, begins);
  std::vector<float> path(static_cast<size_t>(2 * begins[1]));
  store.read(0, path);
  EXPECT_EQ(path[1], 0.0f);
  EXPECT_EQ(path[3], 1.0f);
  EXPECT_EQ(path[0], static_cast<float>(begins[1] - 1) + 0.5f);
}

// --- the cache

TEST_F(DatasetTest, WhatIsEvaluatedAloneNeedsNoOther) {
  const Dataset whole = open({.train = {file("train.txt", "one two two three\nfour\n")},
                              .format = "lines",
                              .validation_fraction = 0,
                              .tokenizer = {.kind = "word", .min_frequency = 1}});
  const std::string words = file("tokenizer.json", whole.tokenizer().file().bytes);
  DataOptions options{.train = {path("nowhere.txt")},
                      .validation = {path("nowhere.txt")},
                      .test = {file("test.txt", "two zebras, one\n")},
                      .format = "lines",
                      .test_fraction = 0.5,
                      .tokenizer = {.kind = words},
                      .only = SplitName::test};
  const Dataset data = open(options);
  EXPECT_FALSE(data.has(SplitName::train) || data.has(SplitName::validation));
  EXPECT_EQ(data.tokenizer().vocabulary_file(), whole.tokenizer().vocabulary_file());
  EXPECT_EQ(data.vocab_size, whole.vocab_size);
  EXPECT_TRUE(has(data.description(), "5 test tokens in 1 records")) << data.description();
  EXPECT_EQ(records_of(data, data.test), Texts{"two <unk> <unk> one"});
  // Rare words can be copied, though the file does not know them.
  std::vector<int32_t> ids(static_cast<size_t>(data.test.size()));
  data.test.open->read(0, ids);
  EXPECT_EQ(data.tokenizer().decode_stored(ids), "two zebras, one");
  options.only = SplitName::validation;
  EXPECT_EQ(refusal_of([&] { open(options); }).where, "data.validation");
}

TEST_F(DatasetTest, TrajectoriesAloneHaveNoNormalisation) {
  const std::string scene = file("a.txt", "0 1 0.5 1\n10 1 1.5 1\n20 1 3 2\n");
  const Dataset data = open({.train = {path("nowhere.txt")},
                             .validation = {scene},
                             .format = "trajectories",
                             .only = SplitName::validation});
  ASSERT_TRUE(data.has_trajectories());
  EXPECT_FALSE(data.has(SplitName::train));
  EXPECT_EQ(data.first_trajectories()->points(), 3);
  EXPECT_EQ(data.normalisation.channels(), 0);
  EXPECT_TRUE(has(data.description(), "1 validation paths, 3 points")) << data.description();
}

TEST_F(DatasetTest, IsMadeOnce) {
  const std::string text = file("a.txt", "one two three");
  age(text);
  const DataOptions options{.train = {text}, .validation_fraction = 0};
  const Dataset first = open(options);
  EXPECT_TRUE(first.prepared.has_value());
  const Dataset second = open(options);
  EXPECT_FALSE(second.prepared.has_value());
  EXPECT_EQ(text_of(second, second.train), "one two three");
  // The same content under another name is the same data.
  const Dataset copy = open({.train = {file("b.txt", "one two three")}, .validation_fraction = 0});
  EXPECT_FALSE(copy.prepared.has_value());
  EXPECT_EQ(copy.key, first.key);
  // Another tokenizer, another content: another key.
  EXPECT_NE(open({.train = {text}, .validation_fraction = 0, .tokenizer = {.kind = "byte"}}).key,
            first.key);
  file("a.txt", "one two THREE");
  const Dataset changed = open(options);
  EXPECT_NE(changed.key, first.key);
  EXPECT_EQ(text_of(changed, changed.train), "one two THREE");
}

// Within the resolution of the clock a file may change and keep its stamp.
TEST_F(DatasetTest, AFileWrittenTwiceInAMomentIsNoticed) {
  const DataOptions options{.train = {file("a.txt", "one")}, .validation_fraction = 0};
  open(options);
  const int fd = ::open(path("a.txt").c_str(), O_WRONLY);
  struct stat before {};
  fstat(fd, &before);
  ASSERT_EQ(pwrite(fd, "two", 3, 0), 3);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  futimens(fd, times);
  close(fd);
  const Dataset data = open(options);
  EXPECT_EQ(text_of(data, data.train), "two");
}

TEST_F(DatasetTest, DamageIsNoticedAndMended) {
  const std::string text = file("a.txt", "one two three");
  age(text);
  const DataOptions options{.train = {text}, .validation_fraction = 0};
  const fs::path folder = open(options).folder;
  for (const char* name : {"dataset.json", "train/meta.json", "train/tokens.bin",
                           "train/tokens.bin.xxh3", "train/records.bin", "tokenizer.json"})
    for (const bool shorter : {false, true}) {
      SCOPED_TRACE(name);
      notes_.notes.clear();
      std::string bytes = read_file(folder / name);
      if (shorter)
        bytes.pop_back();
      else
        bytes[bytes.size() / 2] ^= 4;
      write_file(folder / name, bytes);
      const Dataset data = open(options);
      EXPECT_EQ(text_of(data, data.train), "one two three");
      EXPECT_EQ(records_of(data, data.train), Texts{"one two three"});
    }
}

// A reader that had mapped the file would die of SIGBUS.
TEST_F(DatasetTest, AFileThatShrinksWhileItIsReadIsAnError) {
  struct Shrinker : DataObserver {
    std::string file;
    void progress(const char* stage, int64_t, int64_t) override {
      if (std::string_view(stage) == "tokenizing" && truncate(file.c_str(), 1000) != 0)
        std::abort();
    }
  } shrinker;
  shrinker.file = file("a.txt", std::string(30'000'000, 'x'));
  const DataOptions options{.train = {shrinker.file}, .tokenizer = {.kind = "byte"}};
  const ErrorFields e = refusal_of([&] { open_dataset(options, shrinker); });
  EXPECT_TRUE(has(e.what, "changed while it was read")) << e.what;
  EXPECT_EQ(e.where, shrinker.file);
  // Nothing is left that another start would take for the data.
  EXPECT_EQ(open(options).train.size() + open(options).validation.size(), 1000);
}

TEST_F(DatasetTest, ConcurrentStartsShareTheWork) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += fmt::format("line {}\n", i);
  const DataOptions options{
      .train = {file("a.txt", lines)}, .format = "lines", .validation_fraction = 0};
  std::atomic<int> made = 0;
  std::vector<std::thread> starts;
  for (int i = 0; i < 4; ++i)
    starts.emplace_back([&] {
      DataObserver nobody;
      const Dataset data = open_dataset(options, nobody);
      made += data.prepared ? 1 : 0;
      EXPECT_EQ(data.counts.records[0], 20000);
    });
  for (std::thread& t : starts) t.join();
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace millrace
