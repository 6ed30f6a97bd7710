// Attrs: the named constants of a node. A handful per node, kept sorted by name so that their text
// (and with it the Plan's text and hash) does not depend on the order in which they were written.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/shape.h"

namespace millrace {

class Attrs {
 public:
  using Item = std::variant<int64_t, double, std::string>;
  struct Entry {
    std::string name;
    Item item;
    Entry(std::string entry_name, int64_t value) : name(std::move(entry_name)), item(value) {}
    Entry(std::string entry_name, int value) : name(std::move(entry_name)), item(int64_t{value}) {}
    Entry(std::string entry_name, bool value) : name(std::move(entry_name)), item(int64_t{value}) {}
    Entry(std::string entry_name, double value) : name(std::move(entry_name)), item(value) {}
    Entry(std::string entry_name, std::string value)
        : name(std::move(entry_name)), item(std::move(value)) {}
    Entry(std::string entry_name, const char* value)
        : name(std::move(entry_name)), item(std::string(value)) {}
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  Attrs() = default;
  Attrs(std::initializer_list<Entry> entries) {
    for (const Entry& e : entries) set(e);
  }

  void set(const Entry& entry);
  void erase(std::string_view name);
  const Item* find(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  int64_t integer(std::string_view name) const;  // MR_CHECK when absent
  double number(std::string_view name, double fallback) const;
  double number(std::string_view name) const;
  std::string text(std::string_view name, std::string fallback = {}) const;

  std::string str() const;  // "causal=1 head_dim=64"
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  std::vector<Entry> entries_;
};

// Shapes inside attributes: "4x8x16", "" for a scalar.
std::string shape_text(const Shape& shape);
Shape shape_from_text(std::string_view text);

}  // namespace millrace
