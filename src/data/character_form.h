// BPE over characters, as Llama 2 has it in tokenizer.json: a space is the sign U+2581, one more is
// put in front, and a character without a token becomes its bytes, tokens `<0x00>` to `<0xFF>`.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_file.h"
#include "data/word_splitter.h"

namespace millrace {

class CharacterForm {
 public:
  // From `normalizer`, `pre_tokenizer` and `decoder`.
  explicit CharacterForm(const BpeFile& file);

  static constexpr std::string_view kMark = "\u2581";
  static std::string byte_token(uint8_t byte);
  // What a token stands for: spaces, a byte, or itself.
  static std::string shown(std::string_view token);

  bool normalizes() const { return before_ == Before::any; }
  // A part of a text as its tokens are written; `is_first`: nothing stands before it.
  std::string spelled(std::string_view part, bool is_first) const;
  // Cuts a spelled text so that no merge reaches over a cut; nothing: it is one word. `knows_mark`:
  // the sign for a space is a token itself.
  std::unique_ptr<WordSplitter> splitter(const std::vector<std::string>& tokens,
                                         bool knows_mark) const;
  // Takes off the decoded text what was put in front.
  void strip(std::string& text) const;

 private:
  void read_normalizer(const BpeFile& file, const nlohmann::json& stage);
  void read_metaspace(const BpeFile& file, const nlohmann::json& stage);
  void read_decoder(const BpeFile& file);

  // Where a space is put in front: of nothing; of every part; of those, or of the first one, that
  // do not begin with one.
  enum class Before { nothing, any, unspaced, first_unspaced };
  Before before_ = Before::nothing;
  bool marks_spaces_ = false, each_space_cuts_ = false, strips_ = false;
};

}  // namespace millrace
