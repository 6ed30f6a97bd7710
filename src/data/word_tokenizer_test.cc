#include "data/word_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/error_testing.h"
#include "core/rng.h"
#include "core/text.h"

namespace millrace {
namespace {

using namespace std::string_literals;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

// Every word of `text`, in order.
Words words_of(std::string_view text, bool lower_case = false) {
  WordCounts counts;
  counts.add("a", true);
  const auto tokenizer =
      make_word_tokenizer(counts, {.min_frequency = 1, .lower_case = lower_case});
  Words rare;
  Ids ids;
  tokenizer->encode_extended(text, {"text"}, rare, ids);
  Words words;
  for (const int32_t id : ids) words.push_back(id < 4 ? "a" : rare[static_cast<size_t>(id) - 4]);
  return words;
}

std::map<std::string, int64_t> counts_of(const WordCounts& counts) {
  std::map<std::string, int64_t> map;
  for (size_t i = 0; i < counts.size(); ++i) map[std::string(counts[i].text)] = counts[i].count;
  return map;
}

// "the" 4, "cat" 3, "." 2, "sat" 2, "dog" 1, "emu" 0.
std::unique_ptr<WordTokenizer> small(WordOptions options = {}) {
  WordCounts counts;
  counts.add("the cat sat. the cat sat. the dog", true);
  counts.add("the cat", true);
  counts.add("emu cat sat", false);
  return make_word_tokenizer(counts, options);
}

TEST(Words, AreRunsOfLettersNumbersAndMarks) {
  EXPECT_EQ(words_of("the cat"), (Words{"the", "cat"}));
  EXPECT_EQ(words_of("  3rd,4.5%\t"), (Words{"3rd", ",", "4", ".", "5", "%"}));
  EXPECT_EQ(words_of("a_b ...(x)"), (Words{"a", "_", "b", ".", ".", ".", "(", "x", ")"}));
  EXPECT_EQ(words_of("Größe Ωμέγα вода 水火 😀😀"),
            (Words{"Größe", "Ωμέγα", "вода", "水火", "😀", "😀"}));
  // A mark belongs to its letter: e and U+0301, and the vowel signs of Devanagari.
  EXPECT_EQ(words_of("cafe\u0301 हिन्दी"), (Words{"cafe\u0301", "हिन्दी"}));
  EXPECT_EQ(words_of("٣٤ Ⅷ x²"), (Words{"٣٤", "Ⅷ", "x²"}));
  EXPECT_EQ(words_of(""), Words{});
  EXPECT_EQ(words_of(" \t\r"), Words{});
}

TEST(Words, MayHaveApostrophesAndHyphensBetweenLetters) {
  EXPECT_EQ(words_of("don't state-of-the-art l\u2019\u00E9t\u00E9"),
            (Words{"don't", "state-of-the-art", "l\u2019\u00E9t\u00E9"}));
  EXPECT_EQ(words_of("e\u0301-e\u0301"), (Words{"e\u0301-e\u0301"}));
  EXPECT_EQ(words_of("'tis dogs' a--b -c d- 'x'"), (Words{"'", "tis", "dogs", "'", "a", "-", "-",
                                                          "b", "-", "c", "d", "-", "'", "x", "'"}));
  EXPECT_EQ(words_of("F-16 16-bit 1'2"), (Words{"F", "-", "16", "16", "-", "bit", "1", "'", "2"}));
  EXPECT_EQ(words_of("a-"), (Words{"a", "-"}));
}

TEST(Words, LineEndsAndStrayBytesAreWords) {
  EXPECT_EQ(words_of("a\n\nb\r\nc"), (Words{"a", "\n", "\n", "b", "\n", "c"}));
  EXPECT_EQ(words_of("a\u00A0b\u3000c"), (Words{"a", "b", "c"}));
  EXPECT_EQ(words_of("a\xFF\xC3x\xE6\xB0"), (Words{"a", "\xFF", "\xC3", "x", "\xE6", "\xB0"}));
  EXPECT_EQ(words_of(std::string_view("a\0b", 3)), (Words{"a", std::string(1, '\0'), "b"}));
}

TEST(Words, LowerCaseIsThatOfAllAlphabets) {
  EXPECT_EQ(words_of("The ÄÖÜ ΑΒΓΣ ВОДА Ǆ Ⅷ Ꭰ 𐐀 水 don'T \xC4", true),
            (Words{"the", "äöü", "αβγσ", "вода", "ǆ", "ⅷ", "ꭰ", "𐐨", "水", "don't", "\xC4"}));
  EXPECT_EQ(words_of("\u0130", true), Words{"\u0130"});  // its lower case has two characters
}

TEST(WordCounts, DependNeitherOnOrderNorOnCuts) {
  const std::string text = "b a\nb don't c. b\xFF";
  WordCounts whole, parts, joined, other;
  whole.add(text, true);
  whole.add("d a", false);
  parts.add("d a", false);
  for (const char* part : {"c. b\xFF", "b don't", "b a\n"}) parts.add(part, true);
  EXPECT_EQ(counts_of(parts), counts_of(whole));
  EXPECT_EQ(
      counts_of(whole),
      (std::map<std::string, int64_t>{
          {"b", 3}, {"a", 1}, {"\n", 1}, {"don't", 1}, {"c", 1}, {".", 1}, {"\xFF", 1}, {"d", 0}}));
  joined.add(text, true);
  other.add("d a", false);
  other.add(joined);
  EXPECT_EQ(counts_of(other), counts_of(whole));
  EXPECT_EQ(make_word_tokenizer(other, {.min_frequency = 1})->file(),
            make_word_tokenizer(whole, {.min_frequency = 1})->file());
}

// What a model knows does not depend on words that are only copied.
TEST(WordTokenizer, RareWordsAreNoPartOfTheVocabularyFile) {
  auto made = [](const char* rare, const char* frequent) {
    WordCounts counts;
    counts.add("a a b b c", true);
    counts.add(rare, false);
    counts.add(frequent, true);
    return make_word_tokenizer(counts, {.min_frequency = 2});
  };
  const auto one = made("x", ""), two = made("y z", ""), three = made("x", "c");
  EXPECT_NE(one->file(), two->file());
  EXPECT_EQ(one->vocabulary_file(), two->vocabulary_file());
  EXPECT_NE(one->vocabulary_file(), three->vocabulary_file());
}

TEST(WordCounts, GrowWithTheirWords) {
  WordCounts counts;
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 5000; ++i) counts.add(std::to_string(i), true);
  EXPECT_EQ(counts.size(), 5000u);
  for (const auto& [word, count] : counts_of(counts)) EXPECT_EQ(count, 3) << word;
}

TEST(WordTokenizer, TheMostFrequentWordsAreTheVocabulary) {
  const auto tokenizer = small();
  EXPECT_EQ(tokenizer->name(), "word");
  EXPECT_EQ(tokenizer->vocab_size(), 7);  // three signs, and four words that occur twice
  EXPECT_EQ(tokenizer->open_size(), 9);
  EXPECT_EQ(tokenizer->start_id(), 1);
  EXPECT_EQ(tokenizer->end_id(), 2);
  Words words;
  for (int32_t id = 0; id < 9; ++id) words.emplace_back(tokenizer->word(id));
  EXPECT_EQ(words, (Words{"<unk>", "<s>", "</s>", "the", "cat", ".", "sat", "dog", "emu"}));
  EXPECT_EQ(small({.vocab_size = 5})->vocab_size(), 5);
  EXPECT_EQ(small({.vocab_size = 5})->open_size(), 9);
  EXPECT_EQ(small({.min_frequency = 1})->vocab_size(), 8);  // the emu is not for training
  EXPECT_EQ(small({.min_frequency = 4})->vocab_size(), 4);
}

TEST(WordTokenizer, EncodesRareWordsAsUnknownOrOpen) {
  const auto tokenizer = small();
  const std::string text = "the dog sat. emu yak";
  Ids ids = {9}, open = {9};
  tokenizer->encode(text, {"a.txt"}, ids);
  EXPECT_EQ(ids, (Ids{9, 3, 0, 6, 5, 0, 0}));
  tokenizer->encode_open(text, open);
  EXPECT_EQ(open, (Ids{9, 3, 7, 6, 5, 8, 0}));
}

// See et al. 2017, section 2.2: the words of a source that are not in the vocabulary extend it, for
// this example alone.
TEST(WordTokenizer, ExtendsTheVocabularyByAnExample) {
  const auto tokenizer = small();
  Ids source, target, rare;
  tokenizer->encode_open("emu cat dog emu.", source);
  tokenizer->encode_open("the dog yak", target);
  tokenizer->extend(source, rare);
  EXPECT_EQ(source, (Ids{7, 4, 8, 7, 5}));
  EXPECT_EQ(rare, (Ids{8, 7}));  // emu, dog
  tokenizer->extend(target, rare);
  EXPECT_EQ(target, (Ids{3, 8, 0}));
  EXPECT_EQ(rare, (Ids{8, 7}));
  Ids other;
  tokenizer->encode_open("dog emu", other);
  Ids none;
  tokenizer->extend(other, none);  // another example numbers them anew
  EXPECT_EQ(other, (Ids{7, 8}));
  EXPECT_EQ(none, (Ids{7, 8}));
}

TEST(WordTokenizer, ExtendsTheVocabularyByTextNeverSeen) {
  const auto tokenizer = small();
  Words rare;
  Ids source, target;
  tokenizer->encode_extended("yak cat dog yak", {"text"}, rare, source);
  EXPECT_EQ(source, (Ids{7, 4, 8, 7}));
  EXPECT_EQ(rare, (Words{"yak", "dog"}));
  tokenizer->encode_extended("gnu dog", {"text"}, rare, target);
  EXPECT_EQ(target, (Ids{9, 8}));
  EXPECT_EQ(rare, (Words{"yak", "dog", "gnu"}));
  EXPECT_EQ(tokenizer->decode_extended(source, rare), "yak cat dog yak");
  EXPECT_EQ(error_of([&] { tokenizer->decode_extended(Ids{10}, rare); }).got, "10");
}

TEST(WordTokenizer, RefusesIdsOutsideItsVocabulary) {
  const auto tokenizer = small();
  for (const int32_t id : {-1, 7, INT32_MAX, INT32_MIN})
    EXPECT_EQ(error_of([&] { tokenizer->decode(Ids{id}); }).got, std::to_string(id));
  for (const int32_t id : {-1, 9, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(error_of([&] { tokenizer->word(id); }).got, std::to_string(id));
    Ids ids = {id}, rare;
    EXPECT_EQ(error_of([&] { tokenizer->extend(ids, rare); }).got, std::to_string(id));
  }
}

TEST(WordTokenizer, DecodesWithSpacesWherePeoplePutThem) {
  const auto tokenizer = small();
  const auto joined = [&](std::string_view text) {
    Words rare;
    Ids ids = {1};
    tokenizer->encode_extended(text, {"text"}, rare, ids);
    ids.push_back(2);
    return tokenizer->decode_extended(ids, rare);
  };
  EXPECT_EQ(joined("the cat  sat ."), "the cat sat.");
  EXPECT_EQ(joined("a ( b , [ c ] ) ; 5 % { d } : e ! f ?"), "a (b, [c]); 5% {d}: e! f?");
  EXPECT_EQ(joined("the\n\n cat \n."), "the\n\ncat\n.");
  EXPECT_EQ(joined("don't x-y \u2014 z"), "don't x-y \u2014 z");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 0, 5, 2}), "the <unk>.");
  EXPECT_EQ(tokenizer->decode({}), "");
}

TEST(WordTokenizer, TextMayBeCutBeforeItsLastSpace) {
  const auto tokenizer = small();
  EXPECT_EQ(tokenizer->last_cut("the cat sat"), 7u);
  EXPECT_EQ(tokenizer->last_cut("the cat "), 7u);
  EXPECT_EQ(tokenizer->last_cut("the\ncat"), 3u);
  EXPECT_EQ(tokenizer->last_cut("the"), 0u);
  EXPECT_EQ(tokenizer->last_cut(" the"), 0u);
  EXPECT_EQ(tokenizer->last_cut(""), 0u);
  // Whatever the text, the ids of the parts are those of the whole.
  RandomStream random(1, RandomUse::test);
  const std::vector<std::string> parts = {"the", "cat", " ",      "  ", "\n",   "\t",     "'",
                                          "-",   ".",   "\u0301", "é",  "\xC3", "\u00A0", "7"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t k = 0, count = random.below(12); k < count; ++k)
      text += parts[random.below(parts.size())];
    const size_t cut = tokenizer->last_cut(text);
    ASSERT_LE(cut, text.size());
    Words whole = words_of(text), left = words_of(std::string_view(text).substr(0, cut));
    for (const std::string& word : words_of(std::string_view(text).substr(cut)))
      left.push_back(word);
    ASSERT_EQ(left, whole) << text;
  }
}

TEST(WordTokenizer, LowerCaseCountsAllFormsTogether) {
  WordCounts counts;
  counts.add("The the THE Éa éA dog", true);
  const auto tokenizer = make_word_tokenizer(counts, {.lower_case = true});
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->open_size(), 6);
  Ids ids;
  tokenizer->encode("tHe ÉA DOG", {"a.txt"}, ids);
  EXPECT_EQ(ids, (Ids{3, 4, 0}));
  Words rare;
  ids.clear();
  tokenizer->encode_extended("Yak YAK", {"text"}, rare, ids);
  EXPECT_EQ(rare, Words{"yak"});
}

TEST(WordTokenizer, JsonRoundTrip) {
  WordCounts counts;
  counts.add("\"the\" \\ \n\t 水 é\xFF\x80 don't \x01 \x7F \0 the"s, true);
  for (const bool lower_case : {false, true}) {
    const auto tokenizer = make_word_tokenizer(
        counts, {.vocab_size = 6, .min_frequency = 1, .lower_case = lower_case});
    const TokenizerFile file = tokenizer->file();
    EXPECT_EQ(file.name, "tokenizer.json");
    const auto copy = word_tokenizer_from_json(file.bytes, "tokenizer.json");
    EXPECT_EQ(copy->file(), file);
    EXPECT_EQ(copy->vocab_size(), 6);
    ASSERT_EQ(copy->open_size(), tokenizer->open_size());
    for (int32_t id = 0; id < copy->open_size(); ++id)
      EXPECT_EQ(copy->word(id), tokenizer->word(id));
    Ids ids, wanted;
    copy->encode_open("THE the \xFF \n", ids);
    tokenizer->encode_open("THE the \xFF \n", wanted);
    EXPECT_EQ(ids, wanted);
  }
  const auto json = nlohmann::json::parse(small()->file().bytes);
  EXPECT_EQ(json, nlohmann::json::parse(R"({"type": "word", "lower_case": false, "vocab_size": 7,
      "words": ["the", "cat", ".", "sat", "dog", "emu"]})"));
}

TEST(WordTokenizer, RefusesDamagedFiles) {
  const auto with = [](const char* key, nlohmann::json value) {
    auto json = nlohmann::json::parse(small()->file().bytes);
    json[key] = std::move(value);
    return json.dump();
  };
  const auto without = [](const char* key) {
    auto json = nlohmann::json::parse(small()->file().bytes);
    json.erase(key);
    return json.dump();
  };
  struct Case {
    std::string file, expected, got;
  };
  const std::vector<Case> cases = {
      {"", "JSON", "byte 1"},
      {"[]", "an object", "array"},
      {"{\"type\":\"word\",\"type\":\"word\"}", "every key once", "`type` twice"},
      {std::string("{}\0", 3), "JSON", "zero byte at 2"},
      {"{\"type\":1e999}", "JSON", "too large"},
      {without("type"), "`type`", "null"},
      {with("type", "char"), "type `word`", "`char`"},
      {without("lower_case"), "boolean `lower_case`", "null"},
      {with("lower_case", 1), "boolean `lower_case`", "number"},
      {without("words"), "array `words`", "null"},
      {with("words", "the"), "array `words`", "string"},
      {with("vocab_size", 3), "4 to 9", "3"},
      {with("vocab_size", 10), "4 to 9", "10"},
      {with("vocab_size", -1), "`vocab_size`", "number"},
      {with("vocab_size", 4.5), "`vocab_size`", "number"},
      {with("words", {"the", "the"}), "vocab_size from 4 to 5", "7"},
      {with("words", {"a", "b", "c", "d", "a"}), "every word once", "`a` twice"},
      {with("words", {"a", "b", "c", ""}), "one word as words[3]", "\"\""},
      {with("words", {"a", "b", "c", " d"}), "one word as words[3]", "\" d\""},
      {with("words", {"a", "b", "c", "d e"}), "one word as words[3]", "\"d e\""},
      {with("words", {"a", "b", "c", 127}), "a byte", "127"},
      {with("words", {"a", "b", "c", 256}), "a byte", "256"},
      {with("words", {"a", "b", "c", nullptr}), "a word or a byte", "null"},
      {with("words", {"a", "b", "c", {"d"}}), "a word or a byte", "[]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.file);
    const ErrorFields e = error_of([&] { word_tokenizer_from_json(c.file, "a.json"); });
    EXPECT_EQ(e.where, "a.json");
    EXPECT_NE(e.expected.find(c.expected), std::string::npos) << e.expected;
    EXPECT_NE(e.got.find(c.got), std::string::npos) << e.got;
    EXPECT_FALSE(e.remedy.empty());
  }
  const std::string upper =
      R"({"type": "word", "lower_case": true, "vocab_size": 4, "words": ["A"]})";
  EXPECT_EQ(error_of([&] { word_tokenizer_from_json(upper, "a.json"); }).expected,
            "a word in lower case as words[0]");
  EXPECT_EQ(error_of([] { word_tokenizer_from_json(std::string((64 << 20) + 1, ' '), "a"); }).got,
            "64.0 MiB");
}

TEST(WordTokenizer, RefusesWhatGivesNoVocabulary) {
  EXPECT_EQ(error_of([] { make_word_tokenizer({}, {}); }).where, "data.min_frequency");
  EXPECT_EQ(error_of([] { make_word_tokenizer({}, {.min_frequency = 1}); }).where, "data.train");
  EXPECT_EQ(error_of([] { small({.vocab_size = 3}); }).where, "data.vocab_size");
  EXPECT_EQ(error_of([] { small({.vocab_size = int64_t{1} << 40}); }).where, "data.vocab_size");
  EXPECT_EQ(error_of([] { small({.min_frequency = 5}); }).where, "data.min_frequency");
  EXPECT_EQ(error_of([] { small({.min_frequency = 0}); }).got, "0");
  WordCounts large;  // its file could not be read again
  large.add(std::string(64 << 20, 'a'), true);
  const ErrorFields e = error_of([&] { make_word_tokenizer(large, {.min_frequency = 1}); });
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.where, "data.train");
}

}  // namespace
}  // namespace millrace
