// The tables of byte-level BPE: which neighbours merge, which bytes are a token, and the added
// tokens that are found in the text before anything else.
#pragma once
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::bpe {

constexpr uint32_t kNoRank = ~uint32_t{0};

// Open addressing over a power of two of places, at most half of them taken.
inline size_t places_for(size_t count) { return std::bit_ceil(2 * count + 2); }

// What two neighbours become, and how early.
class Merges {
 public:
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };
  explicit Merges(size_t count) : places_(places_for(count)) {}

  // Of equal pairs the last counts, as in the reference.
  void set(int32_t left, int32_t right, Merge merge) {
    Place& place = places_[find(key_of(left, right))];
    place = {key_of(left, right), merge};
  }
  Merge get(int32_t left, int32_t right) const { return places_[find(key_of(left, right))].merge; }

 private:
  struct Place {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t find(uint64_t key) const {
    const size_t mask = places_.size() - 1;
    size_t at = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
    while (places_[at].key != key && places_[at].key != ~uint64_t{0}) at = (at + 1) & mask;
    return at;
  }
  std::vector<Place> places_;
};

// Ids by the bytes of a token.
class Words {
 public:
  explicit Words(size_t count) : places_(places_for(count)) {}
  // `bytes` must live as long as the table.
  void set(std::string_view bytes, int32_t id) {
    const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    places_[find(bytes, hash)] = {bytes, hash, id};
  }
  int32_t get(std::string_view bytes) const {
    return places_[find(bytes, XXH3_64bits(bytes.data(), bytes.size()))].id;
  }

 private:
  struct Place {
    std::string_view bytes;
    uint64_t hash = 0;
    int32_t id = -1;
  };
  size_t find(std::string_view bytes, uint64_t hash) const {
    const size_t mask = places_.size() - 1;
    size_t at = hash & mask;
    while (places_[at].id >= 0 && (places_[at].hash != hash || places_[at].bytes != bytes))
      at = (at + 1) & mask;
    return at;
  }
  std::vector<Place> places_;
};

// Added tokens, which are found in the text before anything else: the leftmost, of several there
// the longest.
class AddedTokens {
 public:
  struct Token {
    int32_t id = -1;
    bool strip_left = false, strip_right = false;
  };
  struct Match {
    size_t begin, end;
    const Token* token;
  };
  void add(std::string_view text, Token token) {
    size_t node = 0;
    for (const char c : text) {
      auto& next = nodes_[node].next;
      const auto found = std::find_if(next.begin(), next.end(),
                                      [&](const auto& branch) { return branch.first == c; });
      if (found != next.end()) {
        node = found->second;
        continue;
      }
      next.emplace_back(c, nodes_.size());
      node = nodes_.size();
      nodes_.emplace_back();
    }
    nodes_[node].token = token;
    starts_[static_cast<unsigned char>(text[0])] = true;
  }
  bool empty() const { return nodes_.size() == 1; }

  // The first match that begins at `from` or later; token null: none.
  Match find(std::string_view text, size_t from) const {
    for (size_t at = from; at < text.size(); ++at) {
      if (!starts_[static_cast<unsigned char>(text[at])]) continue;
      Match match{at, at, nullptr};
      size_t node = 0;
      for (size_t end = at; end < text.size(); ++end) {
        const auto& next = nodes_[node].next;
        const auto found = std::find_if(next.begin(), next.end(), [&](const auto& branch) {
          return branch.first == text[end];
        });
        if (found == next.end()) break;
        node = found->second;
        if (nodes_[node].token.id >= 0) match = {at, end + 1, &nodes_[node].token};
      }
      if (match.token) return match;
    }
    return {text.size(), text.size(), nullptr};
  }

 private:
  struct Node {
    std::vector<std::pair<char, size_t>> next;
    Token token;
  };
  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};
};

}  // namespace millrace::bpe
