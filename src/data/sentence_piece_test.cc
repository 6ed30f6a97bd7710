#include "data/sentence_piece.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <thread>

#include "core/error_testing.h"
#include "core/file.h"
#include "core/rng.h"
#include "core/text.h"
#include "data/sentence_piece_testing.h"

namespace millrace {
namespace {

namespace hand = sentence_piece_testing;

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, {"a.txt"}, ids);
  return ids;
}

// A text of words made of syllables: enough to learn from, the same every time.
const std::vector<std::string>& sentences() {
  static const std::vector<std::string> kSentences = [] {
    const std::vector<std::string> syllables = {"ka", "lo", "mi", "ne", "strö", "tu",
                                                "ß",  "и",  "水", "an", "der",  "ing"};
    RandomStream random(3, RandomUse::test);
    std::vector<std::string> made;
    for (int i = 0; i < 2000; ++i) {
      std::string line;
      for (uint64_t words = 1 + random.below(10), w = 0; w < words; ++w) {
        if (w > 0) line += ' ';
        for (uint64_t count = 1 + random.below(4), k = 0; k < count; ++k)
          line += syllables[random.below(syllables.size()) * random.below(4) / 3];
      }
      made.push_back(line + (random.below(2) ? "." : ""));
    }
    return made;
  }();
  return kSentences;
}

const std::string& learned(const std::string& kind) {
  static const std::string kUnigram = train_sentence_piece({"unigram", 400}, sentences());
  static const std::string kBpe = train_sentence_piece({"bpe", 400}, sentences());
  return kind == "bpe" ? kBpe : kUnigram;
}

// Text of every kind: words of the sentences, white space, signs that are written specially, any
// characters; bytes that are no characters too, when asked.
std::string random_text(RandomStream& random, bool is_utf8) {
  static const std::vector<std::string> kParts = {
      " ",      "  ",  "\t",    "\r",      "\u00A0",
      "\u3000", "<s>", "<unk>", "<0x41>",  "<x>",
      "<x>y",   "ab",  "b",     "abc",     "strö",
      "der",    "12",  "é",     "e\u0301", "ﬁ",
      "Ⅷ",      "😀",   "水",    "\uFFFD",  std::string(1, '\0')};
  std::string text;
  for (uint64_t count = random.below(30), i = 0; i < count; ++i) {
    const uint64_t kind = random.below(is_utf8 ? 10 : 12);
    if (kind < 4) {
      const std::string& line = sentences()[random.below(sentences().size())];
      text += line.substr(0, line.find(' '));
    } else if (kind < 8) {
      text += kParts[random.below(kParts.size())];
    } else if (kind < 10) {
      const auto c = static_cast<char32_t>(random.below(kLastCodePoint + 1));
      const bool is_character = c != '\n' && c != 0x2581 && (c < 0xD800 || c > 0xDFFF);
      append_utf8(is_character ? c : 'x', text);
    } else {
      const auto byte = static_cast<char>(static_cast<uint8_t>(random.below(256)));
      text += byte == '\n' ? 'x' : byte;
    }
  }
  return text;
}

// Ids and decoded text are those of the library.
void expect_same_as_library(const std::string& model, int texts) {
  const auto tokenizer = make_sentence_piece_tokenizer(model, "a.model");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  EXPECT_EQ(tokenizer->vocab_size(), library.GetPieceSize());
  EXPECT_EQ(tokenizer->start_id(), library.bos_id());
  EXPECT_EQ(tokenizer->end_id(), library.eos_id());
  RandomStream random(1, RandomUse::test);
  std::vector<int> wanted;
  std::string decoded;
  for (int i = 0; i < texts; ++i) {
    const std::string text = random_text(random, /*is_utf8=*/i % 2 == 0);
    ASSERT_TRUE(library.Encode(text, &wanted).ok());
    ASSERT_EQ(encode(*tokenizer, text), wanted) << text;
    ASSERT_TRUE(library.Decode(wanted, &decoded).ok());
    ASSERT_EQ(tokenizer->decode(wanted), decoded) << text;
    // In any order; a line end begins a new line here only.
    for (int& id : wanted)
      id = static_cast<int>(random.below(static_cast<uint64_t>(tokenizer->vocab_size())));
    std::erase_if(wanted, [&](int id) { return library.IdToPiece(id) == "<0x0A>"; });
    ASSERT_TRUE(library.Decode(wanted, &decoded).ok());
    ASSERT_EQ(tokenizer->decode(wanted), decoded);
  }
}

TEST(SentencePiece, LearnedModelsLoseNothing) {
  for (const std::string kind : {"unigram", "bpe"}) {
    const auto tokenizer = make_sentence_piece_tokenizer(learned(kind), "a.model");
    EXPECT_EQ(tokenizer->name(), kind == "bpe" ? "SentencePiece BPE" : "SentencePiece unigram");
    EXPECT_EQ(tokenizer->vocab_size(), 400);
    EXPECT_EQ(tokenizer->start_id(), 1);
    EXPECT_EQ(tokenizer->end_id(), 2);
    EXPECT_EQ(tokenizer->file(), (TokenizerFile{"tokenizer.model", learned(kind)}));
    RandomStream random(2, RandomUse::test);
    for (int i = 0; i < 1000; ++i) {
      const std::string text =
          random_text(random, /*is_utf8=*/true) + "\n" + random_text(random, /*is_utf8=*/true);
      const std::vector<int32_t> ids = encode(*tokenizer, text);
      for (const int32_t id : ids) ASSERT_TRUE(id > 2 && id < 400);
      ASSERT_EQ(tokenizer->decode(ids), text);
    }
    // Learned at all: fewer tokens than characters.
    EXPECT_LT(encode(*tokenizer, sentences()[0]).size(), sentences()[0].size() / 2);
  }
}

TEST(SentencePiece, TheSameSentencesGiveTheSameBytes) {
  for (const std::string kind : {"unigram", "bpe"})
    EXPECT_EQ(train_sentence_piece({kind, 400}, sentences()), learned(kind));
}

TEST(SentencePiece, IdsAreThoseOfTheLibrary) {
  expect_same_as_library(learned("unigram"), 2000);
  expect_same_as_library(learned("bpe"), 2000);
}

// Models with the options that change how text is cut, made by the library.
TEST(SentencePiece, IdsAreThoseOfTheLibraryForItsOptions) {
  using Options = std::unordered_map<std::string, std::string>;
  const std::vector<Options> all = {
      {},  // nmt_nfkc, no bytes
      {{"user_defined_symbols", "<x>,<x>y,ab,é"}, {"split_by_whitespace", "false"}},
      {{"treat_whitespace_as_suffix", "true"}, {"byte_fallback", "true"}, {"vocab_size", "400"}},
      {{"add_dummy_prefix", "false"}, {"remove_extra_whitespaces", "false"}},
      {{"normalization_rule_name", "nfkc_cf"}, {"bos_id", "-1"}, {"unk_surface", "?"}},
  };
  const std::string path = testing::TempDir() + "sentence_piece_test.txt";
  {
    std::string text;
    for (size_t i = 0; i < 300; ++i) text += sentences()[i] + "\n";
    write_file(path, text);
  }
  for (const std::string kind : {"unigram", "bpe"}) {
    for (const Options& some : all) {
      Options options = {
          {"vocab_size", "150"}, {"minloglevel", "3"}, {"hard_vocab_limit", "false"}};
      for (const auto& [key, value] : some) options[key] = value;
      options["model_type"] = kind;
      options["input"] = path;
      options["model_prefix"] = testing::TempDir() + "sentence_piece_test";
      const auto status = sentencepiece::SentencePieceTrainer::Train(options);
      ASSERT_TRUE(status.ok()) << status.ToString();
      SCOPED_TRACE(kind + ", " + (some.empty() ? "defaults" : some.begin()->first));
      expect_same_as_library(read_file(options["model_prefix"] + ".model"), 400);
    }
  }
}

// What no trainer writes: pieces that are not to be used, rules that give nothing or several
// characters, a space that is not written as U+2581.
TEST(SentencePiece, IdsAreThoseOfTheLibraryForModelsByHand) {
  const std::string pieces =
      hand::start_pieces() + hand::piece("\u2581", -3) + hand::piece("a", -2) +
      hand::piece("b", -2.5f) + hand::piece("ab", -1) + hand::piece("abc", -0.5f, 5) +
      hand::piece("c", -4) + hand::piece("bc", -1.5f, 5) + hand::piece("<x>", 0, 4) +
      hand::piece("\u2581der", -1) + hand::piece("de", -2) + hand::piece("d", -6) +
      hand::piece("e", -6) + hand::piece("der", -1, 5) + hand::piece("é", -7, 5) +
      hand::piece(" ", -2);
  const std::string rules = hand::rules(
      {{"ﬁ", "fi"}, {"Ⅷ", "VIII"}, {"\t", " "}, {"\u00A0", ""}, {"e\u0301", "é"}, {"12", " a b "}});
  for (const uint64_t kind : {hand::kUnigram, hand::kBpe}) {
    for (const std::string& normalizer :
         {hand::normalizer(""), hand::normalizer(hand::text(2, rules)),
          hand::normalizer(hand::text(2, rules) + hand::integer(4, 0) + hand::integer(5, 0))}) {
      expect_same_as_library(pieces + hand::trainer(kind) + normalizer, 500);
    }
  }
}

TEST(SentencePiece, LinesAreEncodedOneByOne) {
  const auto tokenizer = make_sentence_piece_tokenizer(learned("bpe"), "a.model");
  const int32_t newline = 3 + '\n';  // the byte piece <0x0A>
  std::vector<int32_t> wanted = encode(*tokenizer, "lo mi\r");
  wanted.insert(wanted.end(), {newline, newline});
  for (const int32_t id : encode(*tokenizer, " ne")) wanted.push_back(id);
  wanted.push_back(newline);
  EXPECT_EQ(encode(*tokenizer, "lo mi\r\n\n ne\n"), wanted);
  EXPECT_EQ(tokenizer->decode(wanted), "lo mi\r\n\n ne\n");
  EXPECT_EQ(encode(*tokenizer, ""), std::vector<int32_t>{});
  EXPECT_EQ(encode(*tokenizer, "\n"), std::vector<int32_t>{newline});

  EXPECT_EQ(tokenizer->last_cut("lo\nmi\nne"), 6u);
  EXPECT_EQ(tokenizer->last_cut("lo\n"), 3u);
  EXPECT_EQ(tokenizer->last_cut("lo mi"), 0u);
  EXPECT_EQ(tokenizer->last_cut(""), 0u);

  const std::string pieces = hand::start_pieces() + hand::piece("\u2581a");
  const auto without = make_sentence_piece_tokenizer(pieces, "a.model");
  EXPECT_EQ(encode(*without, "a\na"), (std::vector<int32_t>{3, 3}));
  const auto with = make_sentence_piece_tokenizer(pieces + hand::piece("\n", 0, 4), "a.model");
  EXPECT_EQ(encode(*with, "a\na"), (std::vector<int32_t>{3, 4, 3}));
  EXPECT_EQ(with->decode(std::vector<int32_t>{3, 4, 3}), "a\na");
}

// The library appends to a string for every unknown character in a row: with these it would take
// minutes.
TEST(SentencePiece, LongLinesTakeNoLongerThanShortOnes) {
  std::string unknown, letters;
  for (int i = 0; i < 1'000'000; ++i) unknown += "水";
  for (uint64_t i = 0; i < 1'000'000; ++i) letters += "ab"[i * i % 7 % 2];
  const std::string pieces = hand::start_pieces() + hand::piece("\u2581", -3) +
                             hand::piece("a", -2) + hand::piece("b", -2) + hand::piece("ab", -1) +
                             hand::piece("abab", -0.5f);
  for (const uint64_t kind : {hand::kUnigram, hand::kBpe}) {
    const auto tokenizer = make_sentence_piece_tokenizer(pieces + hand::trainer(kind), "a.model");
    EXPECT_EQ(encode(*tokenizer, unknown), (std::vector<int32_t>{3, 0}));
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, letters)), letters);
  }
}

TEST(SentencePiece, ThreadsEncodeAtTheSameTime) {
  for (const std::string kind : {"unigram", "bpe"}) {
    const auto tokenizer = make_sentence_piece_tokenizer(learned(kind), "a.model");
    std::string text;
    for (const std::string& line : sentences()) text += line + "\n";
    const std::vector<int32_t> wanted = encode(*tokenizer, text);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_EQ(encode(*tokenizer, text), wanted); });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(SentencePiece, DecodeRefusesIdsOutsideTheVocabulary) {
  const auto tokenizer = make_sentence_piece_tokenizer(learned("bpe"), "a.model");
  for (const int32_t id : {-1, 400, INT32_MAX, INT32_MIN})
    EXPECT_EQ(error_of([&] { tokenizer->decode(std::vector{id}); }).got, std::to_string(id));
}

TEST(SentencePiece, SaysWhichVocabularyCanBeLearned) {
  for (const std::string kind : {"unigram", "bpe"}) {
    ErrorFields e = error_of([&] { train_sentence_piece({kind, 100'000}, sentences()); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_EQ(e.where, "data.vocab_size");
    EXPECT_EQ(e.got, "100000");
    const size_t at = e.remedy.find("vocabulary of ");
    ASSERT_NE(at, std::string::npos);
    const int64_t most = std::stoll(e.remedy.substr(at + 14));
    const std::string model = train_sentence_piece({kind, most}, sentences());
    EXPECT_EQ(make_sentence_piece_tokenizer(model, "a.model")->vocab_size(), most);

    e = error_of([&] { train_sentence_piece({kind, 262}, sentences()); });
    EXPECT_EQ(e.where, "data.vocab_size");
    EXPECT_NE(e.expected.find("at least"), std::string::npos);
    EXPECT_EQ(error_of([&] { train_sentence_piece({kind, 2}, sentences()); }).got, "2");
    EXPECT_EQ(error_of([&] { train_sentence_piece({kind, 400}, {}); }).where, "data.train");
    const std::vector<std::string> empty(3);
    EXPECT_EQ(error_of([&] { train_sentence_piece({kind, 400}, empty); }).got, "none");
    EXPECT_EQ(error_of([&] { train_sentence_piece({kind, 400, 0.5}, sentences()); }).got, "0.5");
  }
  EXPECT_EQ(error_of([] { train_sentence_piece({"word", 400}, sentences()); }).got, "`word`");
}

// A word of 68,000 letters would end the process inside the library, and a sentence longer than
// 4,192 bytes would be passed over; bytes that are not UTF-8, and nothing but rare signs, are text.
TEST(SentencePiece, LearnsFromStrangeSentences) {
  std::string word;
  for (int i = 0; i < 34'000; ++i) word += i % 3 == 0 ? "aé" : "ab";
  const std::vector<std::vector<std::string>> all = {
      {word}, {"\xFF\xFE", std::string(10, '\0'), "\t"}, {"\u2581"}, {"\u2585 a", "b"}, {"a\nb\n"}};
  for (const std::string kind : {"unigram", "bpe"}) {
    for (const auto& strange : all) {
      std::vector<std::string> some(sentences().begin(), sentences().begin() + 200);
      some.insert(some.end(), strange.begin(), strange.end());
      const auto tokenizer =
          make_sentence_piece_tokenizer(train_sentence_piece({kind, 320}, some), "a.model");
      EXPECT_EQ(tokenizer->vocab_size(), 320);
    }
    const auto tokenizer = make_sentence_piece_tokenizer(
        train_sentence_piece({kind, 264}, std::vector<std::string>{word}), "a.model");
    EXPECT_LT(encode(*tokenizer, word).size(), word.size() / 2);  // its pairs were learned
  }
}

TEST(SentencePiece, RefusesModelsWithTheirPlace) {
  const ErrorFields e =
      error_of([] { make_sentence_piece_tokenizer(learned("bpe").substr(0, 1000), "a.model"); });
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.where.substr(0, 14), "a.model: byte ");
  EXPECT_FALSE(e.remedy.empty());
  EXPECT_EQ(error_of([] {
              make_sentence_piece_tokenizer(std::string((64 << 20) + 1, 'a'), "a.model");
            }).where,
            "a.model");
}

// Whatever is accepted must encode: rules and pieces were checked before.
TEST(SentencePiece, DamagedModelsAreRefusedOrUsable) {
  const std::string model =
      hand::start_pieces() + hand::piece("\u2581", -1) + hand::piece("ab", -2) +
      hand::piece("a", -3) + hand::trainer(hand::kBpe) +
      hand::normalizer(hand::text(2, hand::rules({{"x", "ab"}, {"xy", "a"}, {"é", ""}})));
  RandomStream random(5, RandomUse::test);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = model;
    for (uint64_t k = 0, count = 1 + random.below(3); k < count; ++k) {
      char& c = damaged[random.below(damaged.size())];
      c = static_cast<char>(c ^ 1 << random.below(8));
    }
    try {
      const auto tokenizer = make_sentence_piece_tokenizer(damaged, "a.model");
      tokenizer->decode(encode(*tokenizer, "xy ab xé\xFF abx"));
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 2900);
}

}  // namespace
}  // namespace millrace
