// Examples of the files of the data cache. Their checksums are right unless it says otherwise: what
// is wrong is behind them.
#include <nlohmann/json.hpp>

#include "data/checked_file.h"
#include "data/checked_json.h"
#include "data/dataset_header.h"
#include "data/pair_index.h"
#include "data/sequence_index.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

using Json = nlohmann::json;

const char* const kDigest = "0123456789abcdef0123456789abcdef";

// The header with one value replaced.
std::string with(Json header, const char* pointer, Json value) {
  header[Json::json_pointer(pointer)] = std::move(value);
  return checked_json_text(std::move(header));
}
std::string without(Json header, const char* key) {
  header.erase(key);
  return checked_json_text(std::move(header));
}

Json token_store() {
  return {{"format", 1}, {"key", kDigest}, {"vocab_size", 50257}, {"tokens", 1000}, {"records", 9}};
}
Json value_store() { return {{"key", kDigest}, {"channels", 2}, {"paths", 3}, {"points", 60}}; }
Json sequence_index() {
  return {{"key", kDigest},
          {"size", 7},
          {"lengths", {{1, 2}, {5, 4}, {64, 1}}},
          {"before", {5, 90, 0, 6, 64, 64}},
          {"split", 1},
          {"cut", 0},
          {"too_short", 1},
          {"bar_width", 5},
          {"bars", {3, 1, 1}}};
}
Json tokens() {
  return {{"key", kDigest},
          {"splits", {"train", "test"}},
          {"file_bytes", 12345},
          {"counts", {100, 0, 2}},
          {"chars", {5000, 0, 70}},
          {"bad", 1},
          {"empty", 2},
          {"first_bad", "a bad record\n  where: a.csv:3"},
          {"records", true},
          {"fields", 2},
          {"vocab_size", 300},
          {"stored_size", 400},
          {"unknown_id", 0},
          {"start_id", 1},
          {"end_ids", {299, 2}},
          {"tokenizer", "tokenizer.json"},
          {"tokenizer_xxh3", kDigest},
          {"tokenizer_name", "word"}};
}
Json trajectories() {
  return {{"key", kDigest},
          {"trajectories", {"train", "validation"}},
          {"file_bytes", 1},
          {"counts", {9, 1, 0}},
          {"bad", 0}};
}

// Every header must be whole and of whole numbers.
void add_common(std::vector<Example>& all, const Json& header, const char* number) {
  const std::string text = checked_json_text(header), pointer = std::string("/") + number;
  all.push_back(accepted(text));
  all.push_back(accepted(Json::parse(text).dump()));  // spaces are not what is summed
  all.push_back(accepted(with(header, "/unknown", 1)));
  std::string other = text;
  other[other.find(kDigest)] = 'f';
  all.push_back(refused(other, {"what was written"}));
  all.push_back(refused("", {"what was written"}));
  all.push_back(refused("[1]", {"what was written"}));
  all.push_back(refused("{\"xxh3\": 1}", {"what was written"}));
  all.push_back(refused(header.dump(1), {"what was written"}));
  // Written with a level of the stack and a longer indentation for each of these.
  all.push_back(refused(repeated("[", 60000), {"what was written"}));
  all.push_back(refused("{\"xxh3\": 1, \"a\": " + repeated("[", 30000) + repeated("]", 30000) + "}",
                        {"damaged"}));
  all.push_back(refused(without(header, number), {number, "none"}));
  all.push_back(refused(without(header, "key"), {"key", "none"}));
  all.push_back(refused(with(header, "/key", 1), {"a text for `key`", "1"}));
  all.push_back(refused(with(header, pointer.c_str(), 1.0), {number, "1.0"}));
  all.push_back(refused(with(header, pointer.c_str(), 1e300), {number, "1e+300"}));
  all.push_back(refused(with(header, pointer.c_str(), -1), {number, "-1"}));
  all.push_back(refused(with(header, pointer.c_str(), INT64_MIN), {number}));
  all.push_back(refused(with(header, pointer.c_str(), uint64_t{1} << 63), {number}));
  all.push_back(refused(with(header, pointer.c_str(), UINT64_MAX), {number}));
  all.push_back(refused(with(header, pointer.c_str(), "1"), {number}));
  all.push_back(refused(with(header, pointer.c_str(), Json::array({1})), {number, "array"}));
  all.push_back(refused(with(header, pointer.c_str(), "\u001b[31m\x7f"), {number}));
}

std::string entries(const std::vector<Sequence>& list) {
  std::string bytes;
  for (const Sequence& s : list) {
    const SequenceBytes entry = encode_sequence(s);
    bytes.append(reinterpret_cast<const char*>(entry.data()), entry.size());
  }
  return bytes;
}

}  // namespace

std::vector<Example> token_store_header_examples() {
  const Json good = token_store();
  std::vector<Example> all = {
      accepted(with(good, "/tokens", int64_t{1} << 48)),
      accepted(with(good, "/vocab_size", int64_t{1} << 31)),
      accepted(with(good, "/tokens", 0)),
      refused(with(good, "/format", 2), {"format from 1 to 1"}),
      refused(with(good, "/tokens", (int64_t{1} << 48) + 1), {"tokens"}),
      refused(with(good, "/records", INT64_MAX), {"records"}),
      refused(with(good, "/vocab_size", (int64_t{1} << 31) + 1), {"vocab_size"}),
      refused(with(good, "/records", 0), {"tokens from 0 to 0"}),
      refused(with(good, "/vocab_size", 0), {"tokens from 0 to 0"}),
  };
  add_common(all, good, "tokens");
  return all;
}

std::vector<Example> value_store_header_examples() {
  const Json good = value_store();
  std::vector<Example> all = {
      accepted(with(good, "/points", int64_t{1} << 40)),
      accepted(with(good, "/points", 3)),
      refused(with(good, "/points", 2), {"points from 3"}),
      refused(with(good, "/paths", 0), {"points from 0 to 0"}),
      refused(with(good, "/channels", 0), {"channels from 1"}),
      refused(with(good, "/channels", 65537), {"channels", "65536"}),
      refused(with(good, "/paths", (int64_t{1} << 40) + 1), {"paths"}),
  };
  add_common(all, good, "points");
  return all;
}

std::vector<Example> normalisation_examples() {
  const Json good = {{"mean", {0.25, -3}}, {"deviation", {0.5, 1e-9}}};
  std::string other = checked_json_text(good);
  other[other.find("0.25") + 2] = '3';
  return {
      accepted(checked_json_text(good)),
      accepted(with(good, "/unknown", 1)),
      refused(other, {"what was written"}),
      refused("", {"what was written"}),
      refused(good.dump(1), {"what was written"}),
      refused(without(good, "mean"), {"mean", "none"}),
      refused(with(good, "/mean", 1), {"mean"}),
      refused(with(good, "/mean", Json::array({"1", "2"})), {"mean: finite numbers"}),
      refused(with(good, "/mean", Json::array()), {"for each channel", "0 and 2"}),
      refused(with(good, "/mean", Json::array({1})), {"for each channel", "1 and 2"}),
      refused(with(good, "/deviation", Json::array({1, 0})), {"above 0"}),
      refused(with(good, "/deviation", Json::array({1, -1})), {"above 0"}),
      refused(with(good, "/deviation", Json::array({1, nullptr})), {"above 0"}),
  };
}

std::vector<Example> sequence_index_header_examples() {
  const Json good = sequence_index();
  std::vector<Example> all = {
      accepted(checked_json_text({{"key", kDigest},
                                  {"size", 0},
                                  {"lengths", Json::array()},
                                  {"before", {0, 0, 0, 0, 0, 0}},
                                  {"split", 0},
                                  {"cut", 0},
                                  {"too_short", 0},
                                  {"bar_width", 1},
                                  {"bars", {0}}})),
      accepted(with(good, "/lengths/2/0", 1 << 21)),
      refused(with(good, "/lengths/2/0", (1 << 21) + 1), {"lengths from 6 to 2097152"}),
      refused(with(good, "/lengths/2/0", 5), {"lengths from 6"}),
      refused(with(good, "/lengths/0/0", 0), {"lengths from 1"}),
      refused(with(good, "/lengths/0/1", 0), {"lengths from 1 to 7", "0"}),
      refused(with(good, "/lengths/0/1", 1), {"lengths of 7 sequences", "1 fewer"}),
      refused(with(good, "/lengths/0/1", 3), {"lengths from 1 to 0", "1"}),
      refused(with(good, "/lengths/0/1", INT64_MAX), {"lengths from 1 to 7"}),
      refused(with(good, "/lengths/1", {5, 4, 0}), {"pairs", "array"}),
      refused(with(good, "/lengths/1", 5), {"pairs", "number"}),
      refused(with(good, "/lengths", "all"), {"a list for `lengths`"}),
      refused(with(good, "/size", 8), {"lengths of 8 sequences"}),
      refused(with(good, "/size", (int64_t{1} << 40) + 1), {"size"}),
      refused(with(good, "/before", {5, 90, 0, 6, 64}), {"6 numbers"}),
      refused(with(good, "/before/0", -5), {"before"}),
      refused(with(good, "/before/0", 6), {"records in bars", "1 fewer"}),
      refused(with(good, "/before/0", 1), {"a mean between", "90 tokens in 1 records"}),
      refused(with(good, "/before/1", 321), {"a mean between"}),
      refused(with(good, "/before/2", 19), {"before from 19"}),
      refused(with(good, "/before/4", 65), {"before from 65"}),
      refused(with(good, "/before/5", int64_t{1} << 50), {"before"}),
      refused(with(good, "/split", 6), {"split from 0 to 5"}),
      refused(with(good, "/cut", -1), {"cut"}),
      refused(with(good, "/too_short", 6), {"too_short"}),
      refused(with(good, "/bar_width", 0), {"bar_width"}),
      refused(with(good, "/bars", Json::array()), {"1 to 16 bars"}),
      refused(with(good, "/bars", Json(std::vector<int>(17))), {"1 to 16 bars", "17"}),
      refused(with(good, "/bars/0", -3), {"bars"}),
      refused(with(good, "/bars/0", 2), {"records in bars"}),
      refused(with(good, "/bars/0", 4), {"bars from 0 to 0"}),
  };
  add_common(all, good, "size");
  return all;
}

std::vector<Example> dataset_header_examples() {
  const Json good = tokens(), paths = trajectories();
  Json plain = tokens();  // without rare words
  plain["stored_size"] = 300;
  plain["unknown_id"] = plain["start_id"] = -1;
  plain["end_ids"] = Json::array();
  Json nothing = plain;  // of empty files
  nothing["splits"] = Json::array();
  nothing["counts"] = {0, 0, 0};
  nothing["vocab_size"] = nothing["stored_size"] = 0;
  std::vector<Example> all = {
      accepted(checked_json_text(plain)),
      accepted(checked_json_text(nothing)),
      accepted(checked_json_text(paths)),
      accepted(with(good, "/first_bad", "\u001b[31m \u009b \x7f")),  // shown as question marks
      accepted(with(good, "/tokenizer", "tokenizer.model")),
      refused(with(good, "/splits", {"test", "train"}), {"splits: train, validation, test"}),
      refused(with(good, "/splits", {"train", "train"}), {"splits"}),
      refused(with(good, "/splits", {"train", "../../test"}), {"splits"}),
      refused(with(good, "/splits", {"train", 1}), {"splits"}),
      refused(with(good, "/splits", {"train"}), {"records in the splits", "[100,0,2]"}),
      refused(with(good, "/splits", {"train", "validation", "test"}), {"records in the splits"}),
      refused(with(good, "/splits", "train"), {"a list for `splits`"}),
      refused(without(good, "splits"), {"`splits`", "none"}),
      refused(with(good, "/counts", {100, 2}), {"3 counts", "2"}),
      refused(with(good, "/counts/0", -1), {"counts"}),
      refused(with(good, "/chars/0", -1), {"chars"}),
      refused(with(good, "/chars", 1), {"a list for `chars`"}),
      refused(with(good, "/bad", -1), {"bad"}),
      refused(with(good, "/empty", 0.5), {"empty"}),
      refused(with(good, "/first_bad", nullptr), {"first_bad", "null"}),
      refused(with(good, "/records", 1), {"true or false", "1"}),
      refused(with(good, "/records", false), {"fields from 1 to 1"}),
      refused(with(good, "/fields", 0), {"fields from 1 to 2"}),
      refused(with(good, "/fields", 3), {"fields from 1 to 2"}),
      refused(with(good, "/vocab_size", -1), {"vocab_size"}),
      refused(with(good, "/vocab_size", 401), {"stored_size from 401"}),
      refused(with(good, "/vocab_size", 299), {"end_ids from 0 to 298", "299"}),
      refused(with(good, "/stored_size", (int64_t{1} << 31) + 1), {"stored_size"}),
      refused(with(good, "/unknown_id", -1), {"unknown_id from 0"}),
      refused(with(good, "/unknown_id", 300), {"unknown_id", "299"}),
      refused(with(good, "/start_id", -2), {"start_id from -1"}),
      refused(with(good, "/end_ids", {299, -1}), {"end_ids from 0", "-1"}),
      refused(with(good, "/end_ids", 299), {"a list for `end_ids`"}),
      refused(with(good, "/start_id", int64_t{1} << 32), {"start_id"}),
      refused(with(nothing, "/start_id", 0), {"start_id from -1 to -1"}),
      refused(with(good, "/tokenizer", "../tokenizer.json"), {"a tokenizer file in this folder"}),
      refused(with(good, "/tokenizer", ""), {"a tokenizer file in this folder"}),
      refused(with(good, "/tokenizer_xxh3", "0123"), {"a checksum", "`0123`"}),
      refused(with(good, "/tokenizer_name", 1), {"tokenizer_name"}),
      refused(with(paths, "/trajectories", Json::array()), {"records in the splits"}),
      refused(checked_json_text({{"key", kDigest},
                                 {"trajectories", Json::array()},
                                 {"file_bytes", 1},
                                 {"counts", {0, 0, 0}},
                                 {"bad", 0}}),
              {"expected: trajectories", "none"}),
      refused(with(paths, "/trajectories", true), {"a list for `trajectories`"}),
  };
  add_common(all, good, "file_bytes");
  return all;
}

std::vector<Example> block_sums_examples() {
  const std::string one = block_sums_bytes({12345}), many = block_sums_bytes({1, 2, 3, 4, 5, 6, 7});
  std::string flipped = many;
  flipped[9] = 1;
  return {
      accepted(block_sums_bytes({})),
      accepted(one),
      accepted(many),
      refused("", {"8 bytes", "0 bytes"}),
      refused("1234567", {"8 bytes", "7 bytes"}),
      refused(one + "x", {"16 bytes", "17 bytes"}),
      refused(flipped, {"what was written", "other bytes"}),
      refused(many.substr(8), {"what was written", "other bytes"}),
  };
}

std::vector<Example> sequence_entries_examples() {
  constexpr int64_t kFar = INT64_MAX;
  return {
      accepted(""),
      accepted(entries({{0, 1, 0, true}, {98, 2, 1, false}, {97, 3, 0, true}})),
      accepted(entries({{1, 1, 0, false}})),
      accepted(entries({{99, 1, 0, true}})),
      refused(entries({{0, 1, 0, false}}), {"1 of 100 tokens", "1 from 0 on"}),
      refused(entries({{100, 1, 0, true}}), {"sequences.bin", "1 from 100 on"}),
      refused(entries({{0, 2, 0, true}}), {"1 of 100 tokens", "2 from 0 on"}),
      refused(entries({{0, 0, 0, true}}), {"0 from 0 on"}),
      refused(entries({{0, -1, 0, true}}), {"4294967295 from 0 on"}),
      refused(entries({{0, 1, 1, true}}), {"1 not to be predicted"}),
      refused(entries({{-1, 1, 0, true}}), {"18446744073709551615"}),
      refused(entries({{kFar, 1, 0, true}}), {"9223372036854775807"}),
      refused(entries({{0, 1, 0, true}, {99, 2, 0, false}}), {"2 from 99 on"}),
  };
}

std::vector<Example> pair_index_header_examples() {
  const Json good = {{"key", kDigest},
                     {"cells", {{4, 3, 5}, {9, 8, 2}}},
                     {"source", {7, 40, 1, 5, 9, 12}},
                     {"target", {7, 30, 1, 4, 8, 8}},
                     {"cut_sources", 1},
                     {"cut_targets", 0},
                     {"useful", 60}};
  std::vector<Example> all = {
      accepted(with(good, "/useful", 69)),
      refused(with(good, "/useful", 70), {"useful from 14 to 69"}),
      refused(with(good, "/useful", 13), {"useful from 14"}),
      refused(with(good, "/cells/0", {4, 3}), {"a source, a target and a count", "array"}),
      refused(with(good, "/cells/0/0", 0), {"cells from 1"}),
      refused(with(good, "/cells/0/1", (1 << 21) + 1), {"cells from 1 to 2097152"}),
      refused(with(good, "/cells/0/2", 0), {"cells from 1"}),
      refused(with(good, "/cells/0/2", 4), {"lengths of 6 pairs"}),
      refused(with(good, "/cells/1/2", int64_t{1} << 40), {"cells from 1"}),
      refused(with(good, "/cells/0/0", 90), {"cells behind those that fit into them"}),
      refused(with(good, "/cells", "none"), {"a list for `cells`"}),
      refused(with(good, "/source/0", 8), {"lengths of 7 pairs"}),
      refused(with(good, "/target/5", 3), {"target from 8"}),
      refused(with(good, "/cut_sources", 8), {"cut_sources from 0 to 7"}),
      refused(with(good, "/cut_targets", -1), {"cut_targets"}),
  };
  add_common(all, good, "useful");
  return all;
}

std::vector<Example> pair_entries_examples() {
  auto entries = [](std::initializer_list<Pair> pairs) {
    std::string bytes;
    for (const Pair& pair : pairs) {
      const PairBytes entry = encode_pair(pair);
      bytes.append(reinterpret_cast<const char*>(entry.data()), entry.size());
    }
    return bytes;
  };
  return {
      accepted(""),
      accepted(entries({{0, 4, 3}, {97, 1, 2}, {0, 97, 3}})),
      refused(entries({{98, 1, 2}}), {"pairs.bin", "1 and 2 from 98 on"}),
      refused(entries({{0, 0, 3}}), {"0 and 3 from 0 on"}),
      refused(entries({{0, 4, 0}}), {"4 and 0"}),
      refused(entries({{0, 4, 5}}), {"a target of up to 4", "4 and 5"}),
      refused(entries({{0, 98, 3}}), {"98 and 3"}),
      refused(entries({{0, -1, 3}}), {"4294967295 and 3"}),
      refused(entries({{-1, 1, 1}}), {"18446744073709551615"}),
  };
}

}  // namespace millrace::fuzz
