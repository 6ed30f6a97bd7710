#include "cuda/choices.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "core/error.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMostBytes = 16 << 20;

}  // namespace

Choices::Choices(fs::path file) : file_(std::move(file)) {
  try {
    if (fs::exists(file_)) read(read_file(file_, kMostBytes), remembered_);
  } catch (const std::exception&) {
    // A cache that cannot be read costs timing again, nothing else.
  }
}

void Choices::read(const std::string& text, Table& table) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const size_t colon = line.find(" : "); colon != std::string::npos)
      table[line.substr(0, colon)] = line.substr(colon + 3);
}

std::string Choices::text_of(const Table& table) {
  std::string text;
  for (const auto& [key, choice] : table) text += key + " : " + choice + "\n";
  return text;
}

std::string Choices::find(const std::string& key, const std::function<std::string()>& measure,
                          const std::string& untimed) {
  if (const auto used = used_.find(key); used != used_.end()) return used->second;
  if (sizes_only_) {
    const auto found = remembered_.find(key);
    return found == remembered_.end() ? "" : found->second;
  }
  // An empty choice was no choice but a card that was too full to time one: not for ever.
  if (const auto found = remembered_.find(key);
      found != remembered_.end() && !found->second.empty())
    return used_[key] = found->second;
  if (!may_time_) return used_[key] = "";
  const std::string measured = measure();
  return used_[key] = measured.empty() ? untimed : remember(key, measured, true);
}

std::string Choices::remember(const std::string& key, const std::string& value, bool first_stays) {
  const auto put = [&] {
    if (std::string& kept = remembered_[key]; !first_stays || kept.empty()) kept = value;
  };
  try {
    change_shared_file(file_, kMostBytes, [&](const std::string& text) {
      read(text, remembered_);
      put();
      return text_of(remembered_);
    });
  } catch (const Error&) {
    // A cache that cannot be written costs the next start a second, nothing else.
    put();
  }
  return remembered_[key];
}

std::optional<int64_t> Choices::number(const std::string& key) const {
  const auto found = remembered_.find(key);
  if (found == remembered_.end()) return {};
  const std::string& text = found->second;
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

void Choices::note_number(const std::string& key, int64_t value) {
  const auto was = number(key);
  if (was && std::abs(static_cast<double>(value - *was)) <= 0.01 * static_cast<double>(*was))
    return;
  remember(key, std::to_string(value), false);
}

std::string Choices::used() const { return text_of(used_); }
void Choices::pin(const std::string& choices) { read(choices, used_); }

}  // namespace millrace::cuda
