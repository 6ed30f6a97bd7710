#include "data/sentence_piece.h"

#include <xxhash.h>

#include <algorithm>
#include <cfloat>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/text.h"
#include "data/bpe_tables.h"
#include "data/sentence_piece_model.h"

namespace millrace {
namespace {

using Type = SentencePieceModel::Type;
using Piece = SentencePieceModel::Piece;

constexpr std::string_view kSpace = "\u2581", kReplacement = "\uFFFD";
constexpr uint32_t kNone = ~uint32_t{0};
// Of one line. The encoders take twelve to fifty times as much.
constexpr int64_t kMostNormalized = int64_t{256} << 20;

// What the first byte says of the length of a character; the library believes it.
size_t character_length(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  const size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  return std::min(length, text.size() - at);
}

// --- a search tree over the bytes of pieces

// Its edges stand in one table, open addressing over a power of two of places; a node is the place
// of the edge that leads to it.
class PieceTree {
 public:
  struct Entry {
    std::string_view text;
    int32_t id;
  };
  static constexpr uint32_t kRoot = kNone;

  PieceTree() = default;
  explicit PieceTree(std::vector<Entry> entries) {
    if (entries.empty()) return;
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.text < b.text; });
    size_t nodes = 0;
    std::string_view before;
    for (const Entry& entry : entries) {
      const auto ends =
          std::mismatch(before.begin(), before.end(), entry.text.begin(), entry.text.end());
      nodes += static_cast<size_t>(entry.text.end() - ends.second);
      before = entry.text;
    }
    places_.resize(bpe::places_for(nodes));
    for (const Entry& entry : entries) {
      uint32_t node = kRoot;
      for (const char c : entry.text) {
        const auto byte = static_cast<uint8_t>(c);
        const size_t at = find(node, byte);
        places_[at].from = node;
        places_[at].label = byte;
        node = static_cast<uint32_t>(at);
      }
      places_[node].id = entry.id;
    }
  }

  bool empty() const { return places_.empty(); }
  // False: no piece goes on like this, or the tree is empty.
  bool step(uint32_t& node, char c) const {
    if (places_.empty()) return false;
    const size_t at = find(node, static_cast<uint8_t>(c));
    node = static_cast<uint32_t>(at);
    return places_[at].label != kFree;
  }
  int32_t id(uint32_t node) const { return places_[node].id; }  // -1: no piece ends here

  // The length of the longest piece that begins at `at`; 0: none.
  size_t longest(std::string_view text, size_t at) const {
    size_t length = 0;
    uint32_t node = kRoot;
    for (size_t end = at; end < text.size() && step(node, text[end]); ++end)
      if (id(node) >= 0) length = end + 1 - at;
    return length;
  }

 private:
  static constexpr uint16_t kFree = 256;
  struct Place {
    uint32_t from = 0;
    int32_t id = -1;
    uint16_t label = kFree;
  };
  size_t find(uint32_t from, uint8_t label) const {
    const size_t mask = places_.size() - 1;
    const uint64_t key = uint64_t{from} << 8 | label;
    size_t at = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
    while (places_[at].label != kFree && (places_[at].from != from || places_[at].label != label))
      at = (at + 1) & mask;
    return at;
  }
  std::vector<Place> places_;
};

std::vector<PieceTree::Entry> entries_of(const std::vector<Piece>& pieces, auto wanted) {
  std::vector<PieceTree::Entry> entries;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (wanted(pieces[i].type)) entries.push_back({pieces[i].text, static_cast<int32_t>(i)});
  return entries;
}

// --- text to the form that pieces are written in

class Normalizer {
 public:
  Normalizer(const SentencePieceModel& model, const PieceTree& user_defined)
      : model_(model), user_defined_(user_defined) {}

  // False: longer than the tables of the encoders are made for.
  bool run(std::string_view line, std::string& out) const {
    out.clear();
    size_t at = 0;
    if (model_.remove_extra_spaces) {
      while (at < line.size()) {
        const Part part = next(line, at);
        if (part.text != " ") break;
        at += part.length;
      }
    }
    if (at == line.size()) return true;
    const std::string_view space = model_.escape_spaces ? kSpace : " ";
    if (model_.add_space && !model_.space_is_suffix) out += space;
    bool behind_space = model_.remove_extra_spaces;
    while (at < line.size()) {
      Part part = next(line, at);
      at += part.length;
      while (behind_space && part.text.starts_with(' ')) part.text.remove_prefix(1);
      if (part.text.empty()) continue;
      behind_space = model_.remove_extra_spaces && part.text.ends_with(' ');
      for (const char c : part.text) {
        if (c == ' ')
          out += space;
        else
          out += c;
      }
      if (static_cast<int64_t>(out.size()) > kMostNormalized) return false;
    }
    if (model_.remove_extra_spaces)
      while (out.ends_with(space)) out.resize(out.size() - space.size());
    if (model_.add_space && model_.space_is_suffix) out += space;
    return true;
  }

 private:
  struct Part {
    std::string_view text;
    size_t length;  // of what it stands for
  };
  // Pieces defined by the user stay as they are; else the longest rule counts.
  Part next(std::string_view line, size_t at) const {
    if (const size_t length = user_defined_.longest(line, at); length > 0)
      return {line.substr(at, length), length};
    if (!model_.rules.empty()) {
      size_t longest = 0, value = 0;
      size_t unit_at = rule_offset(model_.rules[0]);
      const std::string_view key = line.substr(at, kLongestSentencePiece);
      for (size_t i = 0; i < key.size(); ++i) {
        const auto byte = static_cast<uint8_t>(key[i]);
        unit_at ^= byte;
        const uint32_t unit = model_.rules[unit_at];
        if (rule_label(unit) != byte) break;
        unit_at ^= rule_offset(unit);
        if (!rule_has_value(unit)) continue;
        longest = i + 1;
        value = rule_value(model_.rules[unit_at]);
      }
      if (longest > 0) return {model_.replacements.data() + value, longest};
    }
    const CodePoint c = code_point_at(line, at);
    if (c.bytes == 0) return {kReplacement, 1};
    return {line.substr(at, c.bytes), c.bytes};
  }

  const SentencePieceModel& model_;
  const PieceTree& user_defined_;
};

// --- normalised text to pieces

// A part of the text and its piece, from left to right.
struct Part {
  uint32_t begin, end;
  int32_t id;
};

// The segmentation of the highest sum of scores (Viterbi). Sums are rounded where the library
// rounds them, so that of nearly equal segmentations the same one wins.
class Unigram {
 public:
  struct Scratch {
    struct Best {  // of those that end here
      uint32_t begin = kNone;
      int32_t id = -1;
      float score = 0;
    };
    std::vector<Best> best;
  };

  explicit Unigram(const SentencePieceModel& model)
      : tree_(entries_of(model.pieces,
                         [](Type t) { return t == Type::normal || t == Type::user_defined; })),
        scores_(model.pieces.size()),
        unknown_id_(model.unknown_id) {
    float lowest = FLT_MAX, highest = FLT_MIN;
    for (const Piece& piece : model.pieces) {
      if (piece.type != Type::normal) continue;
      lowest = std::min(lowest, piece.score);
      highest = std::max(highest, piece.score);
    }
    for (size_t i = 0; i < scores_.size(); ++i) {
      const Piece& piece = model.pieces[i];
      scores_[i] = piece.type == Type::user_defined
                       ? static_cast<float>(piece.text.size()) * highest - 0.1
                       : piece.score;
    }
    constexpr float kUnknownPenalty = 10;
    unknown_score_ = lowest - kUnknownPenalty;
  }

  void run(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const {
    auto& best = scratch.best;
    best.assign(text.size() + 1, {});
    const auto offer = [&](size_t begin, size_t end, int32_t id, auto score) {
      if (best[end].begin == kNone || score > best[end].score)
        best[end] = {static_cast<uint32_t>(begin), id, static_cast<float>(score)};
    };
    for (size_t at = 0; at < text.size();) {
      const size_t next = at + character_length(text, at);
      const float before = best[at].score;
      bool is_known = false;
      uint32_t node = PieceTree::kRoot;
      for (size_t end = at; end < text.size() && tree_.step(node, text[end]);) {
        ++end;
        const int32_t id = tree_.id(node);
        if (id < 0) continue;
        offer(at, end, id, scores_[static_cast<size_t>(id)] + before);
        is_known = is_known || end == next;
      }
      if (!is_known) offer(at, next, unknown_id_, unknown_score_ + before);
      at = next;
    }
    for (auto end = static_cast<uint32_t>(text.size()); end > 0; end = best[end].begin)
      parts.push_back({best[end].begin, end, best[end].id});
    std::reverse(parts.begin(), parts.end());
  }

 private:
  PieceTree tree_;
  std::vector<double> scores_;
  float unknown_score_;
  int32_t unknown_id_;
};

// Characters, of which the pair of the highest score is merged, the leftmost first, until no pair
// makes a piece. Pieces that are not to be used are taken apart again.
class Bpe {
 public:
  struct Scratch {
    struct Symbol {
      uint32_t begin, size;  // 0: gone
      uint32_t before, next;
      bool is_fixed;  // defined by the user: never merged
    };
    struct Pair {
      float score;
      uint32_t left, right, size;
      bool operator<(const Pair& other) const {
        return score != other.score ? score < other.score : left > other.left;
      }
    };
    std::vector<Symbol> symbols;
    std::vector<Pair> pairs;
    std::unordered_map<int32_t, uint32_t> left_sizes;  // of an unused piece's parts
    // What became of a word, places from its beginning: of few words a text has many.
    struct Hash {
      using is_transparent = void;
      size_t operator()(std::string_view word) const {
        return XXH3_64bits(word.data(), word.size());
      }
    };
    std::unordered_map<std::string, std::vector<Part>, Hash, std::equal_to<>> known;
  };

  Bpe(const SentencePieceModel& model, const PieceTree& user_defined)
      : model_(model), user_defined_(user_defined), words_(model.pieces.size()) {
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      const Piece& piece = model.pieces[i];
      if (!piece.is_text()) continue;
      words_.set(piece.text, static_cast<int32_t>(i));
      if (word_end(piece.text, 0) < piece.text.size() || piece.type == Type::unused)
        words_are_apart_ = false;
    }
  }

  void run(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const {
    if (!words_are_apart_) return merge(text, scratch, parts);
    for (size_t at = 0; at < text.size();) {
      const std::string_view word = text.substr(at, word_end(text, at) - at);
      run_word(word, scratch, static_cast<uint32_t>(at), parts);
      at += word.size();
    }
  }

 private:
  // Before the next space that does not follow another one.
  static size_t word_end(std::string_view text, size_t at) {
    while (text.substr(at).starts_with(kSpace)) at += kSpace.size();
    return std::min(text.find(kSpace, at), text.size());
  }

  // `place`: of the word in its line.
  void run_word(std::string_view word, Scratch& scratch, uint32_t place,
                std::vector<Part>& parts) const {
    constexpr size_t kMostKnown = 1 << 15, kLongestKnown = 64;
    const size_t first = parts.size();
    if (const auto found = scratch.known.find(word); found != scratch.known.end()) {
      parts.insert(parts.end(), found->second.begin(), found->second.end());
    } else {
      merge(word, scratch, parts);
      if (scratch.known.size() < kMostKnown && word.size() <= kLongestKnown)
        scratch.known.emplace(
            word, std::vector<Part>(parts.begin() + static_cast<ptrdiff_t>(first), parts.end()));
    }
    for (size_t i = first; i < parts.size(); ++i) {
      parts[i].begin += place;
      parts[i].end += place;
    }
  }

  void merge(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const {
    auto& [symbols, pairs, left_sizes, known] = scratch;
    symbols.clear();
    pairs.clear();
    left_sizes.clear();
    for (size_t at = 0; at < text.size();) {
      const size_t fixed = user_defined_.longest(text, at);
      const size_t size = fixed > 0 ? fixed : character_length(text, at);
      const auto index = static_cast<uint32_t>(symbols.size());
      symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(size), index - 1,
                         index + 1, fixed > 0});
      at += size;
    }
    symbols.front().before = kNone;
    symbols.back().next = kNone;

    const auto consider = [&](uint32_t left, uint32_t right) {
      if (left == kNone || right == kNone) return;
      if (symbols[left].is_fixed || symbols[right].is_fixed) return;
      const uint32_t size = symbols[left].size + symbols[right].size;
      const int32_t id = words_.get(text.substr(symbols[left].begin, size));
      if (id < 0) return;
      const Piece& piece = model_.pieces[static_cast<size_t>(id)];
      pairs.push_back({piece.score, left, right, size});
      std::push_heap(pairs.begin(), pairs.end());
      if (piece.type == Type::unused) left_sizes[id] = symbols[left].size;
    };
    for (uint32_t i = 1; i < symbols.size(); ++i) consider(i - 1, i);
    while (!pairs.empty()) {
      const Scratch::Pair pair = pairs.front();
      std::pop_heap(pairs.begin(), pairs.end());
      pairs.pop_back();
      auto &left = symbols[pair.left], &right = symbols[pair.right];
      if (left.size == 0 || right.size == 0 || left.size + right.size != pair.size) continue;
      left.size = pair.size;
      left.next = right.next;
      if (right.next != kNone) symbols[right.next].before = pair.left;
      right.size = 0;
      consider(left.before, pair.left);
      consider(pair.left, left.next);
    }
    for (uint32_t i = 0; i != kNone; i = symbols[i].next)
      put(text, symbols[i].begin, symbols[i].begin + symbols[i].size, left_sizes, parts);
  }

  void put(std::string_view text, uint32_t begin, uint32_t end,
           const std::unordered_map<int32_t, uint32_t>& left_sizes,
           std::vector<Part>& parts) const {
    const int32_t id = words_.get(text.substr(begin, end - begin));
    if (id >= 0 && model_.pieces[static_cast<size_t>(id)].type == Type::unused) {
      if (const auto found = left_sizes.find(id); found != left_sizes.end()) {
        put(text, begin, begin + found->second, left_sizes, parts);
        put(text, begin + found->second, end, left_sizes, parts);
        return;
      }
    }
    parts.push_back({begin, end, id >= 0 ? id : model_.unknown_id});
  }

  const SentencePieceModel& model_;
  const PieceTree& user_defined_;
  bpe::Words words_;
  // No piece reaches over the beginning of a word, so that words can be merged one by one.
  bool words_are_apart_ = true;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, const std::string& source_name)
      : bytes_(std::move(bytes)),
        model_(read_sentence_piece_model(bytes_, source_name)),
        user_defined_(
            entries_of(model_.pieces, [](Type type) { return type == Type::user_defined; })),
        normalizer_(model_, user_defined_) {
    if (model_.kind == SentencePieceModel::Kind::bpe)
      bpe_ = std::make_unique<Bpe>(model_, user_defined_);
    else
      unigram_ = std::make_unique<Unigram>(model_);
    set_ends(model_.start_id, model_.end_id);
    newline_ = model_.byte_ids['\n'];
    for (size_t i = 0; i < model_.pieces.size(); ++i)
      if (model_.pieces[i].is_text() && model_.pieces[i].text == "\n")
        newline_ = static_cast<int32_t>(i);
  }

  std::string name() const override { return bpe_ ? "SentencePiece BPE" : "SentencePiece unigram"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  TokenizerFile file() const override { return {"tokenizer.model", bytes_}; }

  void encode(std::string_view text, const TextPlace& place,
              std::vector<int32_t>& out) const override {
    const Borrowed borrowed(*this);
    Scratch& scratch = borrowed.get();
    for (size_t at = 0;;) {
      const size_t end = std::min(text.find('\n', at), text.size());
      if (!encode_line(text.substr(at, end - at), scratch, out)) {
        throw Error({.code = ErrorCode::config,
                     .what = "a line is too long for SentencePiece",
                     .where = place.inside(text, at),
                     .expected = "at most " + human_bytes(kMostNormalized) + ", normalised",
                     .got = "more, from " + human_bytes(static_cast<int64_t>(end - at)),
                     .remedy = "break the text into lines"});
      }
      if (end == text.size()) return;
      if (newline_ >= 0) out.push_back(newline_);
      at = end + 1;
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) check_token_id(id, vocab_size());
    std::string text;
    for (;;) {
      const auto line_end = std::find(ids.begin(), ids.end(), newline_);
      decode_line({ids.begin(), line_end}, text);
      if (line_end == ids.end()) return text;
      text += '\n';
      ids = {line_end + 1, ids.end()};
    }
  }

  size_t last_cut(std::string_view text) const override {
    return text.rfind('\n') + 1;  // no line end: npos + 1 is 0
  }

 private:
  bool is_special(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return false;
    const Type type = model_.pieces[static_cast<size_t>(id)].type;
    return type == Type::control || type == Type::user_defined;
  }
  int32_t special_id(std::string_view text) const override {
    const auto found = std::ranges::find(model_.pieces, text, &Piece::text);
    const auto id = static_cast<int32_t>(found - model_.pieces.begin());
    return is_special(id) ? id : -1;
  }

  struct Scratch {
    std::string normalized;
    std::vector<Part> parts;
    Unigram::Scratch unigram;
    Bpe::Scratch bpe;
  };

  // Working memory for the length of a call: threads encode at the same time.
  class Borrowed {
   public:
    explicit Borrowed(const SentencePieceTokenizer& of) : of_(of) {
      const std::lock_guard lock(of_.mutex_);
      if (of_.scratches_.empty()) {
        scratch_ = std::make_unique<Scratch>();
      } else {
        scratch_ = std::move(of_.scratches_.back());
        of_.scratches_.pop_back();
      }
    }
    ~Borrowed() {
      constexpr size_t kMostKept = 1 << 20;  // of a line; what a longer one took is given back
      if (scratch_->normalized.capacity() > kMostKept) return;
      const std::lock_guard lock(of_.mutex_);
      of_.scratches_.push_back(std::move(scratch_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch& get() const { return *scratch_; }

   private:
    const SentencePieceTokenizer& of_;
    std::unique_ptr<Scratch> scratch_;
  };

  // False: the line is too long.
  bool encode_line(std::string_view line, Scratch& scratch, std::vector<int32_t>& out) const {
    if (!normalizer_.run(line, scratch.normalized)) return false;
    const std::string_view text = scratch.normalized;
    if (text.empty()) return true;
    scratch.parts.clear();
    if (bpe_)
      bpe_->run(text, scratch.bpe, scratch.parts);
    else
      unigram_->run(text, scratch.unigram, scratch.parts);
    bool behind_unknown = false;
    for (const Part& part : scratch.parts) {
      const bool is_unknown = part.id == model_.unknown_id;
      if (is_unknown && model_.byte_fallback) {
        for (const char c : text.substr(part.begin, part.end - part.begin))
          out.push_back(model_.byte_ids[static_cast<uint8_t>(c)]);
      } else if (!is_unknown || !behind_unknown) {  // unknown ones in a row are one
        out.push_back(part.id);
      }
      behind_unknown = is_unknown;
    }
    return true;
  }

  void decode_line(std::span<const int32_t> ids, std::string& out) const {
    const size_t line_begin = out.size();
    std::string bytes;  // of byte pieces in a row
    bool at_start = true, took_space = false;
    for (const int32_t id : ids) {
      const Piece& piece = model_.pieces[static_cast<size_t>(id)];
      if (piece.type == Type::byte) {
        bytes += static_cast<char>(std::stoi(std::string(piece.text.substr(3, 2)), nullptr, 16));
        continue;
      }
      append_bytes(bytes, out);
      if (took_space || out.size() > line_begin) at_start = false;
      took_space = false;
      if (piece.type == Type::control) continue;
      if (piece.type == Type::unknown) {
        out += model_.unknown_surface;
        continue;
      }
      std::string_view text = piece.text;
      if (at_start && (model_.add_space || model_.remove_extra_spaces) &&
          text.starts_with(kSpace)) {
        text.remove_prefix(kSpace.size());
        took_space = !model_.remove_extra_spaces;
      }
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(kSpace, at), text.size());
        out += text.substr(at, end - at);
        if (end < text.size()) out += ' ';
        at = end + kSpace.size();
      }
    }
    append_bytes(bytes, out);
  }

  // As characters where they are some, else as U+FFFD each.
  static void append_bytes(std::string& bytes, std::string& out) {
    for (size_t at = 0; at < bytes.size();) {
      const CodePoint c = code_point_at(bytes, at);
      out += c.bytes > 0 ? std::string_view(bytes).substr(at, c.bytes) : kReplacement;
      at += std::max<size_t>(c.bytes, 1);
    }
    bytes.clear();
  }

  std::string bytes_;  // the model looks into it
  SentencePieceModel model_;
  PieceTree user_defined_;
  Normalizer normalizer_;
  std::unique_ptr<Unigram> unigram_;  // one of the two
  std::unique_ptr<Bpe> bpe_;
  int32_t newline_ = -1;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> scratches_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentence_piece_tokenizer(std::string model_bytes,
                                                         const std::string& source_name) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model_bytes), source_name);
}

}  // namespace millrace
