#include "data/gguf_tokenizer.h"

#include "core/error.h"
#include "data/sentence_piece_model.h"
#include "data/word_splitter.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The format has the types of SentencePiece, with its numbers.
enum Type : int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

struct Tokens {
  explicit Tokens(int64_t vocab_size)
      : texts(static_cast<size_t>(vocab_size)), types(static_cast<size_t>(vocab_size), unused) {
    for (size_t i = 0; i < texts.size(); ++i) texts[i] = fmt::format("[PAD{}]", i);
  }
  void set(int64_t id, std::string text, int32_t type) {
    MR_CHECK(id >= 0 && id < std::ssize(texts), "id {} of {}", id, texts.size());
    texts[static_cast<size_t>(id)] = std::move(text);
    types[static_cast<size_t>(id)] = type;
  }
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

std::vector<GgufEntry> entries(const std::string& kind, const Tokens& tokens,
                               const Tokenizer& tokenizer, std::span<const int32_t> opening) {
  // Said in any case: without, llama.cpp goes by the kind, and would put a start token before every
  // text of `llama` and an end token behind every one of `t5`. An end token behind a prompt, even
  // where training had one between source and target, it refuses of a model without an encoder.
  std::vector<GgufEntry> list{{"tokenizer.ggml.model", kind},
                              {"tokenizer.ggml.tokens", tokens.texts},
                              {"tokenizer.ggml.token_type", tokens.types},
                              {"tokenizer.ggml.add_bos_token", opening.size() == 1},
                              {"tokenizer.ggml.add_eos_token", false}};
  auto id = [&](const char* name, int32_t value) {
    if (value >= 0)
      list.push_back(
          {fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(value)});
  };
  id("bos", opening.size() == 1 ? opening[0] : tokenizer.start_id());
  // Where llama.cpp stops: at any of these, and it has three names for them.
  const auto& ends = tokenizer.end_ids();
  for (size_t i = 0; const char* name : {"eos", "eot", "eom"})
    id(name, i < ends.size() ? ends[i++] : -1);
  id("unknown", tokenizer.unknown_id());
  return list;
}

std::vector<GgufEntry> sentence_piece(const std::string& bytes, const Tokenizer& tokenizer,
                                      int64_t vocab_size, std::span<const int32_t> opening) {
  const SentencePieceModel model = read_sentence_piece_model(bytes, "tokenizer.model");
  Tokens tokens(vocab_size);
  std::vector<float> scores(static_cast<size_t>(vocab_size), -10000);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    tokens.set(static_cast<int64_t>(i), std::string(piece.text), static_cast<int32_t>(piece.type));
    scores[i] = piece.score;
  }
  const bool bpe = model.kind == SentencePieceModel::Kind::bpe;
  auto list = entries(bpe ? "llama" : "t5", tokens, tokenizer, opening);
  list.push_back({"tokenizer.ggml.scores", scores});
  list.push_back({"tokenizer.ggml.add_space_prefix", model.add_space});
  return list;
}

// Which of llama.cpp's expressions cuts text into words.
std::string splitter_of(const Json& root) {
  const Json& whole = root.at("pre_tokenizer");
  const Json stages = whole.value("pretokenizers", Json::array({whole}));
  for (const Json& stage : stages) {
    const std::string type = stage.value("type", "");
    std::string name, got;
    if (type == "Split") {
      const std::string expression = stage.at("pattern").value("Regex", "");
      name = splitter_name(expression);
      got = quote(expression, 80);
    } else if (type == "Digits") {
      const bool each =
          stage.value("individual_digits", false) && stages.back().value("use_regex", true);
      if (each) name = "smollm";
      got = "digits apart in another way than SmolLM";
    } else {
      continue;
    }
    if (!name.empty()) return name;
    throw Error({.code = ErrorCode::config,
                 .what = "the tokenizer cuts words in a way that GGUF has no name for here",
                 .where = "tokenizer.json: pre_tokenizer",
                 .expected = "as GPT-2, Llama 3 or SmolLM",
                 .got = got,
                 .remedy = "--format hf"});
  }
  return "gpt-2";
}

// tokenizer.json was read by a tokenizer already: what is in it is in order.
std::vector<GgufEntry> byte_bpe(const Json& root, const Tokenizer& tokenizer, int64_t vocab_size,
                                std::span<const int32_t> opening) {
  Tokens tokens(vocab_size);
  const Json& model = root.at("model");
  if (model.value("byte_fallback", false))
    throw Error({.code = ErrorCode::config,
                 .what = "GGUF has this kind of tokenizer in another form",
                 .where = "tokenizer.json: model.byte_fallback",
                 .expected = "byte-level BPE, or tokenizer.model in place of tokenizer.json",
                 .got = tokenizer.name(),
                 .remedy = "--format hf"});
  for (const auto& [text, id] : model.at("vocab").items())
    tokens.set(id.get<int64_t>(), text, normal);
  if (root.contains("added_tokens"))
    for (const Json& token : root.at("added_tokens"))
      tokens.set(token.at("id").get<int64_t>(), token.at("content").get<std::string>(),
                 token.value("special", false) ? control : user_defined);
  std::vector<std::string> merges;
  for (const Json& merge : model.at("merges"))
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  auto list = entries("gpt2", tokens, tokenizer, opening);
  list.push_back({"tokenizer.ggml.pre", splitter_of(root)});
  list.push_back({"tokenizer.ggml.merges", merges});
  return list;
}

}  // namespace

std::vector<GgufEntry> gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size,
                                      std::span<const int32_t> opening) {
  const TokenizerFile file = tokenizer.file();
  if (file.name.ends_with(".model"))
    return sentence_piece(file.bytes, tokenizer, vocab_size, opening);
  const Json root = parse_json(file.bytes);
  const Json model = root.value("model", Json());
  if (model.is_object() && model.value("type", "") == "BPE")
    return byte_bpe(root, tokenizer, vocab_size, opening);
  return {{"tokenizer.ggml.model", std::string("none")}};
}

}  // namespace millrace
