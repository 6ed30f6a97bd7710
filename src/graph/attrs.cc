#include "graph/attrs.h"

#include <algorithm>

#include "core/error.h"

namespace millrace {

void Attrs::set(const Entry& entry) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), entry.name,
                             [](const Entry& e, const std::string& name) { return e.name < name; });
  if (at != entries_.end() && at->name == entry.name)
    at->item = entry.item;
  else
    entries_.insert(at, entry);
}

void Attrs::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& e) { return e.name == name; });
}

const Attrs::Item* Attrs::find(std::string_view name) const {
  for (const Entry& e : entries_)
    if (e.name == name) return &e.item;
  return nullptr;
}

int64_t Attrs::integer(std::string_view name, int64_t fallback) const {
  const Item* item = find(name);
  return item ? std::get<int64_t>(*item) : fallback;
}

int64_t Attrs::integer(std::string_view name) const {
  MR_CHECK(find(name), "attribute {} missing", name);
  return integer(name, 0);
}

double Attrs::number(std::string_view name, double fallback) const {
  const Item* item = find(name);
  if (!item) return fallback;
  if (const auto* integer_item = std::get_if<int64_t>(item))
    return static_cast<double>(*integer_item);
  return std::get<double>(*item);
}

double Attrs::number(std::string_view name) const {
  MR_CHECK(find(name), "attribute {} missing", name);
  return number(name, 0);
}

std::string Attrs::text(std::string_view name, std::string fallback) const {
  const Item* item = find(name);
  return item ? std::get<std::string>(*item) : std::move(fallback);
}

std::string Attrs::str() const {
  std::string s;
  for (const Entry& e : entries_) {
    if (!s.empty()) s += ' ';
    s += e.name + '=';
    if (const auto* i = std::get_if<int64_t>(&e.item)) s += std::to_string(*i);
    if (const auto* d = std::get_if<double>(&e.item)) s += fmt::format("{}", *d);
    if (const auto* t = std::get_if<std::string>(&e.item)) s += '"' + *t + '"';
  }
  return s;
}

std::string shape_text(const Shape& shape) {
  std::string s;
  for (int64_t d : shape) s += (s.empty() ? "" : "x") + std::to_string(d);
  return s;
}

Shape shape_from_text(std::string_view text) {
  Shape shape;
  while (!text.empty()) {
    const size_t at = text.find('x');
    shape.push_back(std::stoll(std::string(text.substr(0, at))));
    text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  }
  return shape;
}

}  // namespace millrace
