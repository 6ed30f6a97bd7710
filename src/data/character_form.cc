#include "data/character_form.h"

#include <algorithm>

#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMark = CharacterForm::kMark;

// Before the next mark that does not follow another one, or before every one.
size_t mark_end(std::string_view text, size_t at, bool each) {
  if (each) return std::min(text.find(kMark, at + 1), text.size());
  while (text.substr(at).starts_with(kMark)) at += kMark.size();
  return std::min(text.find(kMark, at), text.size());
}

class MarkSplitter : public WordSplitter {
 public:
  MarkSplitter(bool each, bool parts_stay) : each_(each), parts_stay_(parts_stay) {}
  size_t word_end(std::string_view text, size_t at) const override {
    return mark_end(text, at, each_);
  }
  bool letters_end_at_space() const override { return parts_stay_; }

 private:
  bool each_, parts_stay_;
};

}  // namespace

CharacterForm::CharacterForm(const BpeFile& file) {
  const Json& normalizer = BpeFile::get(file.root(), "normalizer");
  if (!normalizer.is_null()) {
    const Json& list = BpeFile::get(normalizer, "normalizers");
    if (list.is_array()) {
      for (const Json& stage : list) read_normalizer(file, stage);
    } else {
      read_normalizer(file, normalizer);
    }
  }
  const Json& splitting = BpeFile::get(file.root(), "pre_tokenizer");
  if (!splitting.is_null()) read_metaspace(file, splitting);
  if (!marks_spaces_)
    throw file.refuse("normalizer", "Replace of spaces by \u2581, or pre_tokenizer Metaspace",
                      "neither");
  read_decoder(file);
}

void CharacterForm::read_normalizer(const BpeFile& file, const Json& stage) {
  const Json pattern{{"String", " "}};
  const bool is_object = stage.is_object() && !marks_spaces_;
  if (is_object && BpeFile::get(stage, "type") == "Prepend" && before_ == Before::nothing &&
      BpeFile::get(stage, "prepend") == kMark) {
    before_ = Before::any;
  } else if (is_object && BpeFile::get(stage, "type") == "Replace" &&
             BpeFile::get(stage, "pattern") == pattern && BpeFile::get(stage, "content") == kMark) {
    marks_spaces_ = true;
  } else {
    throw file.refuse("normalizer", "Prepend of \u2581 and then Replace of spaces by it",
                      BpeFile::show(stage));
  }
}

void CharacterForm::read_metaspace(const BpeFile& file, const Json& stage) {
  const Json& scheme = stage.is_object() ? BpeFile::get(stage, "prepend_scheme") : stage;
  const bool usual = stage.is_object() && BpeFile::get(stage, "type") == "Metaspace" &&
                     BpeFile::get(stage, "replacement") == kMark &&
                     file.flag(stage, "add_prefix_space", true) && !marks_spaces_;
  if (usual && (scheme.is_null() || scheme == "always"))
    before_ = Before::unspaced;
  else if (usual && scheme == "first")
    before_ = Before::first_unspaced;
  else if (!usual || scheme != "never")
    throw file.refuse("pre_tokenizer", "null behind a normalizer, or else Metaspace with \u2581",
                      BpeFile::show(stage));
  marks_spaces_ = true;
  each_space_cuts_ = file.flag(stage, "split", true);
}

void CharacterForm::read_decoder(const BpeFile& file) {
  const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", " "}};
  Json wanted = Json::array({replace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  wanted[0]["pattern"]["String"] = kMark;
  const Json& list = BpeFile::get(file.object(file.root(), "decoder"), "decoders");
  if (list == wanted) return;
  wanted.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  if (list != wanted)
    throw file.refuse("decoder",
                      "a Sequence of Replace of \u2581 by a space, ByteFallback, Fuse and, if it "
                      "is to be, Strip of one space",
                      BpeFile::show(list));
  strips_ = true;
}

std::string CharacterForm::byte_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

std::string CharacterForm::shown(std::string_view token) {
  if (token.size() == 6 && token.starts_with("<0x")) {
    const auto byte =
        static_cast<uint8_t>(std::stoi("0" + std::string(token.substr(2, 3)), nullptr, 16));
    if (byte_token(byte) == token) return {static_cast<char>(byte)};
  }
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const size_t end = std::min(token.find(kMark, at), token.size());
    text += token.substr(at, end - at);
    if (end < token.size()) text += ' ';
    at = end + kMark.size();
  }
  return text;
}

std::string CharacterForm::spelled(std::string_view part, bool is_first) const {
  std::string text;
  const bool spaced = part.starts_with(' ') || part.starts_with(kMark);
  if (before_ == Before::any || (before_ == Before::unspaced && !spaced) ||
      (before_ == Before::first_unspaced && is_first && !spaced))
    text = kMark;
  for (const char c : part) {
    if (c == ' ')
      text += kMark;
    else
      text += c;
  }
  return text;
}

std::unique_ptr<WordSplitter> CharacterForm::splitter(const std::vector<std::string>& tokens,
                                                      bool knows_mark) const {
  const bool apart = knows_mark && std::ranges::all_of(tokens, [](const std::string& token) {
                       return token.empty() || mark_end(token, 0, false) == token.size();
                     });
  if (!each_space_cuts_ && !apart) return nullptr;
  return std::make_unique<MarkSplitter>(each_space_cuts_, before_ != Before::any);
}

void CharacterForm::strip(std::string& text) const {
  if (strips_ && text.starts_with(' ')) text.erase(0, 1);
}

}  // namespace millrace
